// A queue, a pipeline stage or a width adapter from `x` to `y`.

// Beats of a queue or a stage.
module beats #(parameter WIDTH = 2, parameter CAPACITY = 1, parameter LATENCY = 1) (input clk);
wire rst, x_ready, y_valid;
(* anyseq *) reg x_valid, y_ready;
(* anyseq *) reg [WIDTH-1:0] x_payload;
wire [WIDTH-1:0] y_payload;
resets resets (.clk(clk), .rst(rst));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload)
);
keeps #(.WIDTH(WIDTH), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
keeps #(.WIDTH(WIDTH)) y (.clk(clk), .rst(rst), .valid(y_valid), .ready(y_ready), .payload(y_payload));
in_order #(.WIDTH(WIDTH), .CAPACITY(CAPACITY), .LATENCY(LATENCY)) order (
    .clk(clk), .rst(rst), .may(1'b1), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload)
);
endmodule

// Elements of BITS bits of a width adapter, A a beat of `x` and B a beat of `y`, in frames of FRAME (0: one without end).
module elements #(parameter BITS = 1, parameter A = 1, parameter B = 1, parameter FRAME = 0) (input clk);
wire rst, x_ready, y_valid;
(* anyseq *) reg x_valid, y_ready, follow;
(* anyseq *) reg [4:0] lane;
(* anyseq *) reg [A*BITS-1:0] x_payload;
wire [B*BITS-1:0] y_payload;
resets resets (.clk(clk), .rst(rst));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload)
);
keeps #(.WIDTH(A*BITS), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
keeps #(.WIDTH(B*BITS)) y (.clk(clk), .rst(rst), .valid(y_valid), .ready(y_ready), .payload(y_payload));
// elements held, of the frame that came and went, before the one that is followed
reg [4:0] held = 0, came = 0, went = 0, before = 0;
reg followed = 0;
reg [BITS-1:0] element = 0;
// of a beat, without what fills it
wire [4:0] into = FRAME != 0 && FRAME - came < A ? FRAME - came : A;
wire [4:0] outof = FRAME != 0 && FRAME - went < B ? FRAME - went : B;
wire push = x_valid && x_ready && !rst, pop = y_valid && y_ready && !rst;
wire [4:0] left = held - (pop ? outof : 5'd0);
always @(posedge clk) begin
    held <= left + (push ? into : 5'd0);
    if (push && FRAME != 0) came <= came + into == FRAME ? 5'd0 : came + into;
    if (pop && FRAME != 0) went <= went + outof == FRAME ? 5'd0 : went + outof;
    if (!followed && follow && push && lane < into) begin
        followed <= 1;
        element <= x_payload >> (lane * BITS);
        before <= left + lane;
    end
    else if (followed && pop) begin
        followed <= before >= outof;
        before <= before - outof;
    end
end
wire [BITS-1:0] given = y_payload >> (before * BITS);
always @* if (!rst) begin
    offers_what_it_holds_and_no_more: assert (y_valid == (held >= outof));
    in_order_and_unchanged: assert (!y_valid || !followed || before >= outof || given == element);
    filled_with_zeros: assert (!y_valid || y_payload >> (outof * BITS) == 0);
    takes_beats_until_it_has_one: assert (x_ready || y_valid);
end
endmodule

// What depends on what in the same cycle: no signal of a stream on its own other one; none on `y_ready` where
// READY_CUT, on `x_valid` where VALID_CUT.
module settles #(
    parameter X_WIDTH = 2, parameter Y_WIDTH = 2, parameter READY_CUT = 0, parameter VALID_CUT = 0
) (input clk);
wire rst, same, x_ready, y_valid, twin_x_ready, twin_y_valid, flip_valid, flip_ready;
(* anyseq *) reg x_valid, y_ready;
(* anyseq *) reg [X_WIDTH-1:0] x_payload;
wire [Y_WIDTH-1:0] y_payload, twin_y_payload;
resets resets (.clk(clk), .rst(rst));
flips #(.SIGNALS(2)) once (.clk(clk), .rst(rst), .flip({flip_valid, flip_ready}), .same(same));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload)
);
`CIRCUIT twin (
    .clk(clk), .rst(rst), .x_valid(x_valid ^ flip_valid), .x_ready(twin_x_ready), .x_payload(x_payload),
    .y_valid(twin_y_valid), .y_ready(y_ready ^ flip_ready), .y_payload(twin_y_payload)
);
keeps #(.WIDTH(X_WIDTH), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
always @* if (same) begin
    ready_without_its_valid: assert (!flip_valid || twin_x_ready == x_ready);
    valid_without_its_ready: assert (!flip_ready || twin_y_valid == y_valid);
    payload_without_its_ready: assert (!flip_ready || !y_valid || twin_y_payload == y_payload);
    ready_is_cut: assert (!READY_CUT || !flip_ready || twin_x_ready == x_ready);
    valid_is_cut: assert (!VALID_CUT || !flip_valid || twin_y_valid == y_valid);
end
endmodule
