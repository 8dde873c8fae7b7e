// A fork of `x` into `ys0`, `ys1` and `ys2`.

// Each branch gets each beat once, as soon as it is ready for it.
module branches #(parameter WIDTH = 2) (input clk);
wire rst, x_ready;
(* anyseq *) reg x_valid;
(* anyseq *) reg [2:0] ready;
(* anyseq *) reg [WIDTH-1:0] x_payload;
wire [2:0] valid;
wire [WIDTH-1:0] payload0, payload1, payload2;
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
// branches that have the beat that is offered
reg [2:0] got = 0;
wire [2:0] fire = rst ? 3'd0 : valid & ready;
wire taken = x_valid && x_ready && !rst;
always @(posedge clk) got <= taken ? 3'd0 : got | fire;
always @* if (!rst) begin
    once: assert ((valid & got) == 0);
    nothing_invented: assert (valid == 0 || x_valid);
    as_soon_as_it_is_there: assert (!x_valid || (valid | got) == 3'd7);
    unchanged: assert ((!valid[0] || payload0 == x_payload) && (!valid[1] || payload1 == x_payload)
        && (!valid[2] || payload2 == x_payload));
    to_every_branch: assert (!taken || (got | fire) == 3'd7);
    gone_when_all_have_it: assert (!x_valid || (got | fire) != 3'd7 || x_ready);
end
endmodule

// No valid of a branch waits for a ready, its own or another's.
module settles #(parameter WIDTH = 2) (input clk);
wire rst, same, x_ready, twin_x_ready, flip_valid;
(* anyseq *) reg x_valid;
(* anyseq *) reg [2:0] ready;
(* anyseq *) reg [WIDTH-1:0] x_payload;
wire [2:0] valid, twin_valid, flip_ready;
wire [3*WIDTH-1:0] payload, twin_payload;
resets resets (.clk(clk), .rst(rst));
flips #(.SIGNALS(4)) once (.clk(clk), .rst(rst), .flip({flip_valid, flip_ready}), .same(same));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .ys0_valid(valid[0]), .ys0_ready(ready[0]), .ys0_payload(payload[0*WIDTH+:WIDTH]),
    .ys1_valid(valid[1]), .ys1_ready(ready[1]), .ys1_payload(payload[1*WIDTH+:WIDTH]),
    .ys2_valid(valid[2]), .ys2_ready(ready[2]), .ys2_payload(payload[2*WIDTH+:WIDTH])
);
`CIRCUIT twin (
    .clk(clk), .rst(rst), .x_valid(x_valid ^ flip_valid), .x_ready(twin_x_ready), .x_payload(x_payload),
    .ys0_valid(twin_valid[0]), .ys0_ready(ready[0] ^ flip_ready[0]), .ys0_payload(twin_payload[0*WIDTH+:WIDTH]),
    .ys1_valid(twin_valid[1]), .ys1_ready(ready[1] ^ flip_ready[1]), .ys1_payload(twin_payload[1*WIDTH+:WIDTH]),
    .ys2_valid(twin_valid[2]), .ys2_ready(ready[2] ^ flip_ready[2]), .ys2_payload(twin_payload[2*WIDTH+:WIDTH])
);
keeps #(.WIDTH(WIDTH), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
always @* if (same) begin
    ready_without_its_valid: assert (!flip_valid || twin_x_ready == x_ready);
    valid_without_any_ready: assert (flip_ready == 0 || twin_valid == valid);
    payload_without_any_ready: assert (flip_ready == 0 || twin_payload == payload);
end
endmodule
