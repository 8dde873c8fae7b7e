// What a stream promises (hdl/stream.py), as assumptions about streams into a circuit and assertions about those out of
// it, and what a circuit makes of the beats that it takes.  All is combinational in the cycle that it speaks of.

// high in the first cycle alone
module resets (input clk, output reg rst);
initial rst = 1;
always @(posedge clk) rst <= 0;
endmodule

// Valid stays, and payload with it, until the beat is taken: assumed of a stream into the circuit, asserted of one out.
module keeps #(parameter WIDTH = 1, parameter INTO = 0) (
    input clk, input rst, input valid, input ready, input [WIDTH-1:0] payload
);
reg waiting = 0;
reg [WIDTH-1:0] offered = 0;
always @(posedge clk) begin
    waiting <= valid && !ready && !rst;
    offered <= payload;
end
generate
if (INTO)
    always @* begin
        if (rst) assume (!valid);
        if (waiting) assume (valid && payload == offered);
    end
else
    always @* if (waiting) begin
        valid_stays: assert (valid);
        payload_stays: assert (payload == offered);
    end
endgenerate
endmodule

// What was taken comes out: all of it, once, in order, nothing else.  The beat that is followed may be any one.
// CAPACITY beats are held at most; with less than ROOM the circuit takes one more; one that it holds and may offer
// is offered within LATENCY cycles.
module in_order #(parameter WIDTH = 1, parameter CAPACITY = 1, parameter ROOM = CAPACITY, parameter LATENCY = 1) (
    input clk, input rst, input may,
    input x_valid, input x_ready, input [WIDTH-1:0] x_payload,
    input y_valid, input y_ready, input [WIDTH-1:0] y_payload
);
(* anyseq *) reg follow;
reg [3:0] held = 0, before = 0, silent = 0;
reg followed = 0;
reg [WIDTH-1:0] word = 0;
wire push = x_valid && x_ready && !rst, pop = y_valid && y_ready && !rst;
always @(posedge clk) begin
    held <= held + push - pop;
    silent <= held != 0 && may && !y_valid ? silent + 1'd1 : 4'd0;
    if (!followed && follow && push) begin
        followed <= !(pop && held == 0);
        word <= x_payload;
        before <= held - pop;
    end
    else if (followed && pop) begin
        followed <= before != 0;
        before <= before - 1'd1;
    end
end
always @* if (!rst) begin
    nothing_invented: assert (!y_valid || held != 0 || x_valid);
    unchanged_on_its_way_through: assert (!y_valid || held != 0 || y_payload == x_payload);
    in_order_and_unchanged: assert (!y_valid || !followed || before != 0 || y_payload == word);
    no_more_than_its_depth: assert (held <= CAPACITY);
    takes_what_it_has_room_for: assert (x_ready || held >= ROOM);
    offers_what_it_holds: assert (silent < LATENCY);
end
endmodule

// Once in a run handshake signals into the twin of a circuit are the other way round, one of them at a time.
// `same`: circuit and twin still are in the same state.
module flips #(parameter SIGNALS = 1) (input clk, input rst, output [SIGNALS-1:0] flip, output same);
(* anyseq *) reg [SIGNALS-1:0] chosen;
reg over = 0;
assign flip = chosen, same = !over && !rst;
always @(posedge clk) over <= over || chosen != 0;
always @* begin
    assume ((chosen & (chosen - 1'd1)) == 0);
    if (rst || over) assume (chosen == 0);
end
endmodule
