// The ends of a link (hdl/link): a sender that spends a credit a word, a receiver that gives them back.

// Never more words than credits; a credit that it has is spent; words are numbered.
module sender #(
    parameter DATA = 8, parameter CREDITS = 3, parameter WORDS = 3, parameter SEQUENCE_BITS = 2, parameter HOLDS = 2
) (input clk);
localparam BITS = DATA + SEQUENCE_BITS + 4;
wire rst, x_ready, y_valid, credits_ready;
(* anyconst *) reg number, device;
(* anyseq *) reg x_valid, y_ready, credits_valid;
(* anyseq *) reg [DATA-1:0] x_payload;
(* anyseq *) reg [BITS-1:0] credits_payload;
wire [BITS-1:0] y_payload;
resets resets (.clk(clk), .rst(rst));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .number(number), .device(device), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload),
    .credits_valid(credits_valid), .credits_ready(credits_ready), .credits_payload(credits_payload)
);
keeps #(.WIDTH(DATA), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
keeps #(.WIDTH(BITS)) y (.clk(clk), .rst(rst), .valid(y_valid), .ready(y_ready), .payload(y_payload));
wire back = credits_valid && !rst, spend = y_valid && y_ready && !rst;
wire [DATA-1:0] returned = back ? credits_payload[DATA-1:0] : 0;
// words whose credits have not come back
reg [3:0] open = 0;
reg [SEQUENCE_BITS-1:0] order = 0;
reg [3:0] position = 0;
always @(posedge clk) begin
    open <= open + spend - returned;
    if (spend) begin
        order <= order + 1'd1;
        position <= position == WORDS - 1 ? 4'd0 : position + 1'd1;
    end
end
// a receiver gives back what it has freed
always @* assume (returned <= open);
// a credit is spent in the third cycle after it came
in_order #(.WIDTH(DATA), .CAPACITY(HOLDS), .ROOM(1), .LATENCY(3)) words (
    .clk(clk), .rst(rst), .may(open < CREDITS), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload[DATA-1:0])
);
always @* if (!rst) begin
    never_more_words_than_credits: assert (open <= CREDITS && (!y_valid || open < CREDITS));
    takes_every_credit: assert (credits_ready);
    numbered: assert (!y_valid || y_payload[DATA+1+:SEQUENCE_BITS] == order);
    last_ends_a_tensor: assert (!y_valid || y_payload[DATA] == (position == WORDS - 1));
    addressed: assert (!y_valid || y_payload[BITS-1-:3] == {device, 1'b0, number});
end
endmodule

// Never full when a word comes, whatever the sender spends of what it has; every credit goes back, once.
module receiver #(
    parameter DATA = 8, parameter DEPTH = 4, parameter BATCH = 2, parameter WORDS = 3, parameter SEQUENCE_BITS = 2,
    parameter LATENCY = 1, parameter COUNT = 16
) (input clk);
localparam BITS = DATA + SEQUENCE_BITS + 4;
wire rst, x_ready, y_valid, credits_valid, error;
(* anyconst *) reg number, device;
(* anyseq *) reg x_valid, y_ready, credits_ready;
(* anyseq *) reg [BITS-1:0] x_payload;
wire [DATA-1:0] y_payload;
wire [COUNT+1:0] credits_payload;
resets resets (.clk(clk), .rst(rst));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .number(number), .device(device), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload), .error(error),
    .credits_valid(credits_valid), .credits_ready(credits_ready), .credits_payload(credits_payload)
);
keeps #(.WIDTH(BITS), .INTO(1)) x (.clk(clk), .rst(rst), .valid(x_valid), .ready(x_ready), .payload(x_payload));
keeps #(.WIDTH(DATA)) y (.clk(clk), .rst(rst), .valid(y_valid), .ready(y_ready), .payload(y_payload));
keeps #(.WIDTH(COUNT + 2)) credits (
    .clk(clk), .rst(rst), .valid(credits_valid), .ready(credits_ready), .payload(credits_payload)
);
in_order #(.WIDTH(DATA), .CAPACITY(DEPTH), .LATENCY(LATENCY)) words (
    .clk(clk), .rst(rst), .may(1'b1), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload[DATA-1:0]),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload)
);
wire come = x_valid && x_ready && !rst, free = y_valid && y_ready && !rst, give = credits_valid && credits_ready && !rst;
wire [COUNT-1:0] given = give ? credits_payload[COUNT-1:0] : 0;
// what the sender has, what was freed since credits went back
reg [3:0] has = DEPTH, freed = 0;
reg [2:0] late = 0;
reg [SEQUENCE_BITS-1:0] order = 0;
reg [3:0] position = 0;
reg bad = 0;
always @(posedge clk) begin
    has <= has - come + given;
    freed <= freed + free - given;
    late <= freed >= BATCH && !credits_valid ? late + 1'd1 : 3'd0;
    if (come) begin
        order <= order + 1'd1;
        position <= position == WORDS - 1 ? 4'd0 : position + 1'd1;
        bad <= bad || x_payload[DATA+1+:SEQUENCE_BITS] != order || x_payload[DATA] != (position == WORDS - 1);
    end
end
always @* assume (!x_valid || has != 0);
always @* if (!rst) begin
    never_full_when_a_word_comes: assert (!x_valid || x_ready);
    never_a_credit_too_many: assert (!credits_valid || credits_payload[COUNT-1:0] <= freed);
    no_credit_is_lost: assert (late <= 1 && (!credits_valid || credits_payload[COUNT-1:0] != 0));
    error_where_a_number_is_wrong: assert (error == bad);
    addressed: assert (!credits_valid || credits_payload[COUNT+:2] == {device, number});
end
endmodule

// None of a stream's signals follows its other one; a sender's `x_ready` does not follow its `y_ready`.
module sender_settles #(parameter DATA = 8, parameter BITS = 14) (input clk);
wire rst, same, x_ready, y_valid, credits_ready, twin_x_ready, twin_y_valid, twin_credits_ready;
wire flip_x, flip_y, flip_credits;
(* anyconst *) reg number, device;
(* anyseq *) reg x_valid, y_ready, credits_valid;
(* anyseq *) reg [DATA-1:0] x_payload;
(* anyseq *) reg [BITS-1:0] credits_payload;
wire [BITS-1:0] y_payload, twin_y_payload;
resets resets (.clk(clk), .rst(rst));
flips #(.SIGNALS(3)) once (.clk(clk), .rst(rst), .flip({flip_x, flip_y, flip_credits}), .same(same));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .number(number), .device(device), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload),
    .credits_valid(credits_valid), .credits_ready(credits_ready), .credits_payload(credits_payload)
);
`CIRCUIT twin (
    .clk(clk), .rst(rst), .number(number), .device(device),
    .x_valid(x_valid ^ flip_x), .x_ready(twin_x_ready), .x_payload(x_payload),
    .y_valid(twin_y_valid), .y_ready(y_ready ^ flip_y), .y_payload(twin_y_payload),
    .credits_valid(credits_valid ^ flip_credits), .credits_ready(twin_credits_ready), .credits_payload(credits_payload)
);
always @* if (same) begin
    ready_without_its_valid: assert (!flip_x || twin_x_ready == x_ready);
    credits_without_their_valid: assert (!flip_credits || twin_credits_ready == credits_ready);
    valid_without_its_ready: assert (!flip_y || twin_y_valid == y_valid);
    payload_without_its_ready: assert (!flip_y || !y_valid || twin_y_payload == y_payload);
    ready_is_cut: assert (!flip_y || twin_x_ready == x_ready);
end
endmodule

module receiver_settles #(parameter DATA = 8, parameter BITS = 14, parameter COUNT = 16) (input clk);
wire rst, same, x_ready, y_valid, credits_valid, twin_x_ready, twin_y_valid, twin_credits_valid;
wire flip_x, flip_y, flip_credits;
(* anyconst *) reg number, device;
(* anyseq *) reg x_valid, y_ready, credits_ready;
(* anyseq *) reg [BITS-1:0] x_payload;
wire [DATA-1:0] y_payload, twin_y_payload;
wire [COUNT+1:0] credits_payload, twin_credits_payload;
resets resets (.clk(clk), .rst(rst));
flips #(.SIGNALS(3)) once (.clk(clk), .rst(rst), .flip({flip_x, flip_y, flip_credits}), .same(same));
`CIRCUIT circuit (
    .clk(clk), .rst(rst), .number(number), .device(device), .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload),
    .credits_valid(credits_valid), .credits_ready(credits_ready), .credits_payload(credits_payload)
);
`CIRCUIT twin (
    .clk(clk), .rst(rst), .number(number), .device(device),
    .x_valid(x_valid ^ flip_x), .x_ready(twin_x_ready), .x_payload(x_payload),
    .y_valid(twin_y_valid), .y_ready(y_ready ^ flip_y), .y_payload(twin_y_payload),
    .credits_valid(twin_credits_valid), .credits_ready(credits_ready ^ flip_credits),
    .credits_payload(twin_credits_payload)
);
always @* if (same) begin
    ready_without_its_valid: assert (!flip_x || twin_x_ready == x_ready);
    valid_without_its_ready: assert (!flip_y || twin_y_valid == y_valid);
    payload_without_its_ready: assert (!flip_y || !y_valid || twin_y_payload == y_payload);
    credits_without_their_ready: assert (!flip_credits || twin_credits_valid == credits_valid);
    credit_words_without_their_ready: assert (!flip_credits || twin_credits_payload == credits_payload);
end
endmodule
