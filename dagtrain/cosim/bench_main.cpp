// Drives the clocks of a self-checking Verilog bench until it says how it has ended.
// Prints "frames N cycles" on every change of the bench's progress counter and, at the end, "cycles N", "stuck N",
// "network error N" or "memory error N".
//
// Where the bench has several clocks, clocks.inc lists them, `clk` first: port, period and first rising edge, in steps of
// time.  Edges that fall together are one step.
#include <cstdio>
#include <vector>
#include "Vdagtrain_bench.h"
#include "verilated.h"

struct Clock {
    CData* pin;
    unsigned long long period, next;
};

// to the next rising edge of `clk`, all others on the way; returns at that edge
static void advance(Vdagtrain_bench& bench, std::vector<Clock>& clocks) {
    for (bool rose = false; !rose;) {
        unsigned long long now = clocks[0].next;
        for (const Clock& clock : clocks) now = clock.next < now ? clock.next : now;
        for (Clock& clock : clocks) {
            if (clock.next != now) continue;
            *clock.pin = !*clock.pin;
            clock.next += *clock.pin ? clock.period / 2 : clock.period - clock.period / 2;
            rose |= &clock == &clocks[0] && *clock.pin;
        }
        bench.eval();
    }
}

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vdagtrain_bench bench{&context};
    std::vector<Clock> clocks{
#if __has_include("clocks.inc")
#include "clocks.inc"
#else
        {&bench.clk, 2, 1},
#endif
    };
    unsigned long long cycles = 0;
    unsigned last_progress = 0;
    const char* end = nullptr;
    bench.rst = 1;
    bench.eval();
    while (!end) {
        advance(bench, clocks);
        if (++cycles == 16) bench.rst = 0;
        if (bench.progress != last_progress) {
            last_progress = bench.progress;
            std::printf("frames %u %llu\n", last_progress, cycles);
            std::fflush(stdout);
        }
        if (bench.finished) end = "cycles";
        else if (bench.stuck) end = "stuck";
        else if (bench.memory_error && !bench.rst) end = "memory error";
        else if (bench.network_error && !bench.rst) end = "network error";
    }
    bench.final();
    std::printf("%s %llu\n", end, cycles);
    return 0;
}
