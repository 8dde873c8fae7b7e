// `x` dealt out to `ys0`, `ys1` and `ys2`, and `xs0`, `xs1` and `xs2` collected in `y`: TURN beats each, in turns.

// Whose turn it is: the next one's after every TURN beats.
module whose_turn #(parameter TURN = 1) (input clk, input taken, output reg [1:0] part);
reg [1:0] beat = 0;
initial part = 0;
always @(posedge clk) if (taken) begin
    beat <= beat == TURN - 1 ? 2'd0 : beat + 1'd1;
    if (beat == TURN - 1) part <= part == 2 ? 2'd0 : part + 1'd1;
end
endmodule

// Every beat goes to the one whose turn it is, and to no other.
module dealt #(parameter WIDTH = 2, parameter TURN = 1) (input clk);
wire rst, x_ready;
(* anyseq *) reg x_valid;
(* anyseq *) reg [2:0] ready;
(* anyseq *) reg [WIDTH-1:0] x_payload;
wire [2:0] valid;
wire [WIDTH-1:0] payload0, payload1, payload2;
wire [1:0] part;
resets resets (.clk(clk), .rst(rst));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .ys0_valid(valid[0]), .ys0_ready(ready[0]), .ys0_payload(payload0),
    .ys1_valid(valid[1]), .ys1_ready(ready[1]), .ys1_payload(payload1),
    .ys2_valid(valid[2]), .ys2_ready(ready[2]), .ys2_payload(payload2)
);
keeps #(.WIDTH(WIDTH), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
keeps #(.WIDTH(WIDTH)) y0 (.clk(clk), .rst(rst), .valid(valid[0]), .ready(ready[0]), .payload(payload0));
keeps #(.WIDTH(WIDTH)) y1 (.clk(clk), .rst(rst), .valid(valid[1]), .ready(ready[1]), .payload(payload1));
keeps #(.WIDTH(WIDTH)) y2 (.clk(clk), .rst(rst), .valid(valid[2]), .ready(ready[2]), .payload(payload2));
whose_turn #(.TURN(TURN)) order (.clk(clk), .taken(x_valid && x_ready && !rst), .part(part));
always @* if (!rst) begin
    to_the_one_whose_turn_it_is: assert (valid == (x_valid ? 3'd1 << part : 3'd0));
    unchanged: assert ((!valid[0] || payload0 == x_payload) && (!valid[1] || payload1 == x_payload)
        && (!valid[2] || payload2 == x_payload));
    taken_when_that_one_takes_it: assert (!x_valid || x_ready == (part == 0 ? ready[0] : part == 1 ? ready[1] : ready[2]));
end
endmodule

// No ready follows the valid of its own stream, no valid any ready.
module dealt_settles #(parameter WIDTH = 2) (input clk);
wire rst, same, x_ready, twin_x_ready, flip_valid;
(* anyseq *) reg x_valid;
(* anyseq *) reg [2:0] ready;
(* anyseq *) reg [WIDTH-1:0] x_payload;
wire [2:0] valid, twin_valid, flip_ready;
resets resets (.clk(clk), .rst(rst));
flips #(.SIGNALS(4)) once (.clk(clk), .rst(rst), .flip({flip_valid, flip_ready}), .same(same));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .ys0_valid(valid[0]), .ys0_ready(ready[0]), .ys0_payload(),
    .ys1_valid(valid[1]), .ys1_ready(ready[1]), .ys1_payload(),
    .ys2_valid(valid[2]), .ys2_ready(ready[2]), .ys2_payload()
);
`CIRCUIT twin (
    .clk(clk), .rst(rst), .x_valid(x_valid ^ flip_valid), .x_ready(twin_x_ready), .x_payload(x_payload),
    .ys0_valid(twin_valid[0]), .ys0_ready(ready[0] ^ flip_ready[0]), .ys0_payload(),
    .ys1_valid(twin_valid[1]), .ys1_ready(ready[1] ^ flip_ready[1]), .ys1_payload(),
    .ys2_valid(twin_valid[2]), .ys2_ready(ready[2] ^ flip_ready[2]), .ys2_payload()
);
keeps #(.WIDTH(WIDTH), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
always @* if (same) begin
    ready_without_its_valid: assert (!flip_valid || twin_x_ready == x_ready);
    valid_without_any_ready: assert (flip_ready == 0 || twin_valid == valid);
end
endmodule

// Every beat is of the one whose turn it is, and of no other.
module collected #(parameter WIDTH = 2, parameter TURN = 1) (input clk);
wire rst, y_valid;
(* anyseq *) reg y_ready;
(* anyseq *) reg [2:0] valid;
(* anyseq *) reg [WIDTH-1:0] payload0, payload1, payload2;
wire [2:0] ready;
wire [WIDTH-1:0] y_payload;
wire [1:0] part;
resets resets (.clk(clk), .rst(rst));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload),
    .xs0_valid(valid[0]), .xs0_ready(ready[0]), .xs0_payload(payload0),
    .xs1_valid(valid[1]), .xs1_ready(ready[1]), .xs1_payload(payload1),
    .xs2_valid(valid[2]), .xs2_ready(ready[2]), .xs2_payload(payload2)
);
keeps #(.WIDTH(WIDTH), .INTO(1)) x0 (.clk(clk), .rst(rst), .valid(valid[0]), .ready(ready[0]), .payload(payload0));
keeps #(.WIDTH(WIDTH), .INTO(1)) x1 (.clk(clk), .rst(rst), .valid(valid[1]), .ready(ready[1]), .payload(payload1));
keeps #(.WIDTH(WIDTH), .INTO(1)) x2 (.clk(clk), .rst(rst), .valid(valid[2]), .ready(ready[2]), .payload(payload2));
keeps #(.WIDTH(WIDTH)) y (.clk(clk), .rst(rst), .valid(y_valid), .ready(y_ready), .payload(y_payload));
whose_turn #(.TURN(TURN)) order (.clk(clk), .taken(y_valid && y_ready && !rst), .part(part));
always @* if (!rst) begin
    of_the_one_whose_turn_it_is: assert (y_valid == (part == 0 ? valid[0] : part == 1 ? valid[1] : valid[2]));
    unchanged: assert (!y_valid || y_payload == (part == 0 ? payload0 : part == 1 ? payload1 : payload2));
    taken_from_that_one_alone: assert ((valid & ready) == (y_valid && y_ready ? 3'd1 << part : 3'd0));
end
endmodule

// No ready follows any valid, no valid the ready of its own stream.
module collected_settles #(parameter WIDTH = 2) (input clk);
wire rst, same, y_valid, twin_y_valid, flip_ready;
(* anyseq *) reg y_ready;
(* anyseq *) reg [2:0] valid;
(* anyseq *) reg [3*WIDTH-1:0] payload;
wire [2:0] ready, twin_ready, flip_valid, twin = valid ^ flip_valid;
wire [WIDTH-1:0] y_payload, twin_y_payload;
resets resets (.clk(clk), .rst(rst));
flips #(.SIGNALS(4)) once (.clk(clk), .rst(rst), .flip({flip_ready, flip_valid}), .same(same));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload),
    .xs0_valid(valid[0]), .xs0_ready(ready[0]), .xs0_payload(payload[0*WIDTH+:WIDTH]),
    .xs1_valid(valid[1]), .xs1_ready(ready[1]), .xs1_payload(payload[1*WIDTH+:WIDTH]),
    .xs2_valid(valid[2]), .xs2_ready(ready[2]), .xs2_payload(payload[2*WIDTH+:WIDTH])
);
`CIRCUIT twin_circuit (
    .clk(clk), .rst(rst), .y_valid(twin_y_valid), .y_ready(y_ready ^ flip_ready), .y_payload(twin_y_payload),
    .xs0_valid(twin[0]), .xs0_ready(twin_ready[0]), .xs0_payload(payload[0*WIDTH+:WIDTH]),
    .xs1_valid(twin[1]), .xs1_ready(twin_ready[1]), .xs1_payload(payload[1*WIDTH+:WIDTH]),
    .xs2_valid(twin[2]), .xs2_ready(twin_ready[2]), .xs2_payload(payload[2*WIDTH+:WIDTH])
);
always @* if (same) begin
    ready_without_its_valid: assert (flip_valid == 0 || twin_ready == ready);
    valid_without_its_ready: assert (!flip_ready || twin_y_valid == y_valid);
    payload_without_its_ready: assert (!flip_ready || twin_y_payload == y_payload);
end
endmodule
