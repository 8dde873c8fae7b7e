// Watchers of streams inside the FPGAs: each counts what passes at its clock, and writes what is wrong once to the file
// `told`, as "broken NUMBER BEAT: what", and what it has seen at the end, as "seen NUMBER".  Held streams are shut by the
// bench.

// A stream keeps its contract: valid stays, and payload with it, until the beat is taken; and when it is shut or opened
// between two clock edges, which turns round the ready that its writer sees and the valid that its reader sees, neither
// its valid nor its ready changes within the cycle, nor the payload of a beat.
module dagtrain_bench_stream #(parameter NUMBER = 0, parameter WIDTH = 1) (
    input wire clk,
    input wire rst,
    input wire [31:0] told,
    input wire valid,
    input wire ready,
    input wire [WIDTH-1:0] payload,
    // what its writer and its reader say; the other end sees it only while the stream is open
    input wire own_valid,
    input wire own_ready,
    // streams are shut or opened now; this one is
    input wire flip,
    input wire flips,
    // at the last clock edge, a beat waited to be taken
    output reg waits,
    output reg broken
);
reg [WIDTH-1:0] offered = 0, payload_before = 0;
reg [31:0] beats = 0;
reg valid_before = 0, ready_before = 0, probed = 0, compared = 0;
initial broken = 0;
initial waits = 0;
always @(posedge flip) if (flips) begin
    valid_before <= own_valid;
    ready_before <= own_ready;
    payload_before <= payload;
    probed <= !probed;
end
always @(posedge clk) begin
    waits <= valid && !ready && !rst;
    offered <= payload;
    compared <= probed;
    if (probed != compared && !broken && !rst) begin
        if (own_valid != valid_before) begin
            $fdisplay(told, "broken %0d %0d: valid follows its own ready in the same cycle", NUMBER, beats);
            broken <= 1;
        end
        else if (own_ready != ready_before) begin
            $fdisplay(told, "broken %0d %0d: ready follows its own valid in the same cycle", NUMBER, beats);
            broken <= 1;
        end
        else if (own_valid && payload != payload_before) begin
            $fdisplay(told, "broken %0d %0d: payload follows its own ready in the same cycle", NUMBER, beats);
            broken <= 1;
        end
    end
    if (valid && ready && !rst) beats <= beats + 1;
    if (waits && !broken && !rst) begin
        if (!valid) begin
            $fdisplay(told, "broken %0d %0d: valid fell before the beat was taken", NUMBER, beats);
            broken <= 1;
        end
        else if (payload != offered) begin
            $fdisplay(told, "broken %0d %0d: it changed while it waited, from %h to %h", NUMBER, beats, offered, payload);
            broken <= 1;
        end
    end
end
endmodule

// A FIFO gives what came in, in order, all of it, and holds as many beats as it should.
module dagtrain_bench_fifo #(parameter NUMBER = 0, parameter WIDTH = 1, parameter DEPTH = 2, parameter PATIENCE = 16) (
    input wire clk,
    input wire rst,
    input wire [31:0] told,
    input wire x_valid,
    input wire x_ready,
    input wire [WIDTH-1:0] x_payload,
    input wire y_valid,
    input wire y_ready,
    input wire [WIDTH-1:0] y_payload,
    input wire y_held,
    input wire report,
    output reg broken
);
reg [WIDTH-1:0] kept [0:DEPTH-1];
reg [31:0] write_at = 0, read_at = 0, count = 0, beats = 0, refusing = 0, silent = 0;
reg was_full = 0, was_empty = 0;
wire push = x_valid && x_ready && !rst, pop = y_valid && y_ready && !rst;
initial broken = 0;
always @(posedge clk) begin
    if (push) begin
        kept[write_at] <= x_payload;
        write_at <= write_at == DEPTH - 1 ? 0 : write_at + 1;
    end
    if (pop) begin
        read_at <= read_at == DEPTH - 1 ? 0 : read_at + 1;
        beats <= beats + 1;
    end
    count <= count + push - pop;
    was_full <= was_full || count == DEPTH;
    was_empty <= was_empty || (beats != 0 && count == 0);
    refusing <= x_valid && !x_ready && count != DEPTH && !rst ? refusing + 1 : 0;
    silent <= count != 0 && !y_valid && !y_held && !rst ? silent + 1 : 0;
    if (!broken && !rst) begin
        broken <= 1;
        if (push && !pop && count == DEPTH)
            $fdisplay(told, "broken %0d %0d: it takes a beat more than the %0d that it holds", NUMBER, beats + count, DEPTH);
        else if (pop && count == 0)
            $fdisplay(told, "broken %0d %0d: it gives a beat that never came", NUMBER, beats);
        else if (pop && y_payload != kept[read_at])
            $fdisplay(told, "broken %0d %0d: it gives %h, not %h", NUMBER, beats, y_payload, kept[read_at]);
        else if (refusing == PATIENCE)
            $fdisplay(told, "broken %0d %0d: it refuses a beat, though it has room", NUMBER, beats + count);
        else if (silent == PATIENCE)
            $fdisplay(told, "broken %0d %0d: it keeps a beat to itself", NUMBER, beats);
        else
            broken <= 0;
    end
end
always @(posedge report) if (was_full && was_empty) $fdisplay(told, "seen %0d", NUMBER);
endmodule

// A branch of a fork gives each beat once.
module dagtrain_bench_branch #(parameter NUMBER = 0, parameter WIDTH = 1) (
    input wire clk,
    input wire rst,
    input wire [31:0] told,
    input wire x_valid,
    input wire x_ready,
    input wire [WIDTH-1:0] x_payload,
    input wire y_valid,
    input wire y_ready,
    input wire [WIDTH-1:0] y_payload,
    // another branch takes the beat
    input wire other,
    input wire report,
    output reg broken
);
reg [31:0] beats = 0;
reg given = 0, was_behind = 0;
wire push = x_valid && x_ready && !rst, pop = y_valid && y_ready && !rst;
initial broken = 0;
always @(posedge clk) begin
    given <= !push && (given || pop) && !rst;
    was_behind <= was_behind || (x_valid && other && !y_ready && !given && !rst);
    if (push) beats <= beats + 1;
    if (!broken && !rst) begin
        broken <= 1;
        if (pop && !x_valid)
            $fdisplay(told, "broken %0d %0d: it gives a beat that never came", NUMBER, beats);
        else if (pop && given)
            $fdisplay(told, "broken %0d %0d: it gives a beat twice", NUMBER, beats);
        else if (pop && y_payload != x_payload)
            $fdisplay(told, "broken %0d %0d: it gives %h, not %h", NUMBER, beats, y_payload, x_payload);
        else if (push && !pop && !given)
            $fdisplay(told, "broken %0d %0d: it forgets a beat", NUMBER, beats);
        else
            broken <= 0;
    end
end
always @(posedge report) if (was_behind) $fdisplay(told, "seen %0d", NUMBER);
endmodule

// A link: its sender never has more words under way than it has credits, and waits for none that it has; its receiver
// gives back the credits of all words that have left it.
module dagtrain_bench_link #(
    parameter NUMBER = 0, parameter CREDITS = 2, parameter RETURNED = 1, parameter PATIENCE = 32
) (
    input wire clk,
    input wire rst,
    input wire [31:0] told,
    // of the receiver
    input wire far_clk,
    // elements into the sender, words out of it, credits back to it
    input wire x_valid,
    input wire x_ready,
    input wire sent_valid,
    input wire sent_ready,
    input wire sent_held,
    input wire back_valid,
    input wire back_ready,
    input wire [31:0] back_words,
    // words into the receiver, elements out of it, credits back from it
    input wire got_valid,
    input wire got_ready,
    input wire y_valid,
    input wire y_held,
    input wire freed_valid,
    input wire freed_ready,
    input wire freed_held,
    input wire report,
    output wire broken
);
reg signed [31:0] spent = 0, taken = 0;
reg [31:0] words = 0, waiting = 0, silent = 0, freeing = 0;
reg ran_out = 0, sender_broken = 0, receiver_broken = 0;
wire sent = sent_valid && sent_ready && !rst, back = back_valid && back_ready && !rst;
wire got = got_valid && got_ready && !rst, freed = freed_valid && freed_ready && !rst;
assign broken = sender_broken || receiver_broken;
always @(posedge clk) begin
    spent <= spent + sent - (back ? back_words : 0);
    if (sent) words <= words + 1;
    ran_out <= ran_out || spent == CREDITS;
    waiting <= x_valid && !x_ready && !sent_valid && !sent_held && !back && spent != CREDITS && !rst ? waiting + 1 : 0;
    if (!sender_broken && !rst) begin
        sender_broken <= 1;
        if (spent > CREDITS)
            $fdisplay(told, "broken %0d %0d: the sender spends more than its %0d credits", NUMBER, words, CREDITS);
        else if (spent < 0)
            $fdisplay(told, "broken %0d %0d: the sender gets back a credit that it never spent", NUMBER, words);
        else if (waiting == PATIENCE)
            $fdisplay(told, "broken %0d %0d: the sender waits with %0d of %0d credits spent", NUMBER, words, spent,
                CREDITS);
        else
            sender_broken <= 0;
    end
end
always @(posedge far_clk) begin
    taken <= taken + got - (freed ? RETURNED : 0);
    if (freed) freeing <= freeing + RETURNED;
    silent <= !got && !y_valid && !y_held && !freed_valid && !freed_held && taken >= RETURNED && !rst ? silent + 1 : 0;
    if (!receiver_broken && !rst) begin
        receiver_broken <= 1;
        if (taken < 0)
            $fdisplay(told, "broken %0d %0d: the receiver gives back a credit of a word that never came", NUMBER, freeing);
        else if (silent == PATIENCE)
            $fdisplay(told, "broken %0d %0d: the receiver keeps the credits of %0d words", NUMBER, freeing, taken);
        else
            receiver_broken <= 0;
    end
end
always @(posedge report) if (ran_out) $fdisplay(told, "seen %0d", NUMBER);
endmodule

// What gives the elements that came in, in order, all of them, in beats of another width: a width adapter, and a unit in
// front of DRAM, which may start with some, and may give each tensor several times.  They are counted in parts of which
// the beats of both sides are whole numbers.
module dagtrain_bench_elements #(
    parameter NUMBER = 0, parameter PART = 1, parameter X_PARTS = 1, parameter Y_PARTS = 1,
    // parts that it holds at most: a power of two
    parameter ROOM = 2,
    // parts of what is given so many times: the first one, every later one
    parameter TENSOR = 1, parameter FIRST = 1, parameter LATER = 1,
    // parts that it starts with, and their file
    parameter LOADED = 0, parameter FILE = "",
    // cycles in which what could be given is; 0: any number, as it may wait for more
    parameter PATIENCE = 16
) (
    input wire clk,
    input wire rst,
    input wire [31:0] told,
    input wire x_valid,
    input wire x_ready,
    input wire [X_PARTS*PART-1:0] x_payload,
    input wire y_valid,
    input wire y_ready,
    input wire [Y_PARTS*PART-1:0] y_payload,
    input wire y_held,
    input wire report,
    output reg broken
);
reg [PART-1:0] kept [0:ROOM-1];
reg [Y_PARTS*PART-1:0] due = 0;
// parts that came, and those of tensors that have been given for the last time; where the tensor at hand is
reg [31:0] came = LOADED, gone = 0, place = 0, again = FIRST - 1;
reg [31:0] beats = 0, refusing = 0, silent = 0;
reg was_full = 0, was_empty = 0;
wire push = x_valid && x_ready && !rst, pop = y_valid && y_ready && !rst;
wire [31:0] held = came - gone;
wire some = held - place >= Y_PARTS;
integer i;
initial broken = 0;
initial if (LOADED != 0) $readmemh(FILE, kept, 0, LOADED - 1);
always @(posedge clk) begin
    for (i = 0; i < Y_PARTS; i = i + 1) due[i*PART +: PART] = kept[(gone + place + i) & (ROOM - 1)];
    if (!broken && !rst) begin
        broken <= 1;
        if (push && held + X_PARTS > ROOM)
            $fdisplay(told, "broken %0d %0d: it takes a beat more than it can hold", NUMBER, beats);
        else if (pop && !some)
            $fdisplay(told, "broken %0d %0d: it gives a beat that never came", NUMBER, beats);
        else if (pop && y_payload != due)
            $fdisplay(told, "broken %0d %0d: it gives %h, not %h", NUMBER, beats, y_payload, due);
        else if (refusing == PATIENCE && PATIENCE != 0)
            $fdisplay(told, "broken %0d %0d: it refuses a beat, though it has room", NUMBER, beats);
        else if (silent == PATIENCE && PATIENCE != 0)
            $fdisplay(told, "broken %0d %0d: it keeps a beat to itself", NUMBER, beats);
        else
            broken <= 0;
    end
    if (push) begin
        for (i = 0; i < X_PARTS; i = i + 1) kept[(came + i) & (ROOM - 1)] = x_payload[i*PART +: PART];
        came <= came + X_PARTS;
    end
    if (pop) begin
        beats <= beats + 1;
        place <= place + Y_PARTS == TENSOR ? 0 : place + Y_PARTS;
        if (place + Y_PARTS == TENSOR) begin
            again <= again == 0 ? LATER - 1 : again - 1;
            if (again == 0) gone <= gone + TENSOR;
        end
    end
    was_full <= was_full || (x_valid && !x_ready && !rst);
    was_empty <= was_empty || (beats != 0 && y_ready && !y_valid && !rst);
    refusing <= x_valid && !x_ready && !some && !rst ? refusing + 1 : 0;
    silent <= some && !y_valid && !y_held && !rst ? silent + 1 : 0;
end
always @(posedge report) if (was_full && was_empty) $fdisplay(told, "seen %0d", NUMBER);
endmodule
