// A join of `xs0`, `xs1` and `xs2`, of 1, 2 and 3 bits, into `y`.

// All give a beat in the same cycle, in which `y` takes theirs side by side.
module together (input clk);
wire rst, y_valid;
(* anyseq *) reg y_ready;
(* anyseq *) reg [2:0] valid;
(* anyseq *) reg [5:0] payload;
wire [2:0] ready;
wire [5:0] y_payload;
resets resets (.clk(clk), .rst(rst));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload),
    .xs0_valid(valid[0]), .xs0_ready(ready[0]), .xs0_payload(payload[0]),
    .xs1_valid(valid[1]), .xs1_ready(ready[1]), .xs1_payload(payload[2:1]),
    .xs2_valid(valid[2]), .xs2_ready(ready[2]), .xs2_payload(payload[5:3])
);
keeps #(.WIDTH(1), .INTO(1)) x0 (.clk(clk), .rst(rst), .valid(valid[0]), .ready(ready[0]), .payload(payload[0]));
keeps #(.WIDTH(2), .INTO(1)) x1 (.clk(clk), .rst(rst), .valid(valid[1]), .ready(ready[1]), .payload(payload[2:1]));
keeps #(.WIDTH(3), .INTO(1)) x2 (.clk(clk), .rst(rst), .valid(valid[2]), .ready(ready[2]), .payload(payload[5:3]));
keeps #(.WIDTH(6)) y (.clk(clk), .rst(rst), .valid(y_valid), .ready(y_ready), .payload(y_payload));
wire [2:0] fire = valid & ready;
always @* if (!rst) begin
    when_all_are_there: assert (y_valid == (valid == 3'd7));
    side_by_side: assert (!y_valid || y_payload == payload);
    all_together_with_y: assert (fire == (y_valid && y_ready ? 3'd7 : 3'd0));
end
endmodule

// Each ready follows `y_ready` and the other valids, never its own.
module settles (input clk);
wire rst, same, y_valid, twin_y_valid, flip_ready;
(* anyseq *) reg y_ready;
(* anyseq *) reg [2:0] valid;
(* anyseq *) reg [5:0] payload;
wire [2:0] ready, twin_ready, flip_valid, twin = valid ^ flip_valid;
wire [5:0] y_payload, twin_y_payload;
resets resets (.clk(clk), .rst(rst));
flips #(.SIGNALS(4)) once (.clk(clk), .rst(rst), .flip({flip_ready, flip_valid}), .same(same));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload),
    .xs0_valid(valid[0]), .xs0_ready(ready[0]), .xs0_payload(payload[0]),
    .xs1_valid(valid[1]), .xs1_ready(ready[1]), .xs1_payload(payload[2:1]),
    .xs2_valid(valid[2]), .xs2_ready(ready[2]), .xs2_payload(payload[5:3])
);
`CIRCUIT twin_circuit (
    .clk(clk), .rst(rst), .y_valid(twin_y_valid), .y_ready(y_ready ^ flip_ready), .y_payload(twin_y_payload),
    .xs0_valid(twin[0]), .xs0_ready(twin_ready[0]), .xs0_payload(payload[0]),
    .xs1_valid(twin[1]), .xs1_ready(twin_ready[1]), .xs1_payload(payload[2:1]),
    .xs2_valid(twin[2]), .xs2_ready(twin_ready[2]), .xs2_payload(payload[5:3])
);
always @* if (same) begin
    ready_without_its_valid: assert ((flip_valid & (twin_ready ^ ready)) == 0);
    valid_without_its_ready: assert (!flip_ready || twin_y_valid == y_valid);
    payload_without_its_ready: assert (!flip_ready || twin_y_payload == y_payload);
end
endmodule
