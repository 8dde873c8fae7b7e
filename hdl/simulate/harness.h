// What the harness knows of a circuit: the generated code of a design defines all that is declared here.
#include <cstdint>

// the Verilated circuit
struct Dut;

struct Port {
    const char* name;
    bool input;
    int width, words;
    void (*set_valid)(Dut&, bool);
    void (*set_ready)(Dut&, bool);
    bool (*get_valid)(Dut&);
    bool (*get_ready)(Dut&);
    void (*set_payload)(Dut&, const uint32_t*);
    void (*get_payload)(Dut&, uint32_t*);
};

extern const Port STREAMS[];
extern const int STREAM_COUNT;

// with the constants of the design on their ports
Dut& make_dut();
void set_reset(Dut&, bool value);
// sets the clock and evaluates
void set_clock(Dut&, bool value);
void finish_dut(Dut&);
