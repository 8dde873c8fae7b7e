// Drives the clock of a self-checking Verilog bench until it says how it has ended.
// Prints "frames N cycles" on every change of the bench's progress counter and, at the end, "cycles N", "stuck N",
// "network error N" or "memory error N".
#include <cstdio>
#include "Vdagtrain_bench.h"
#include "verilated.h"

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vdagtrain_bench bench{&context};
    unsigned long long cycles = 0;
    unsigned last_progress = 0;
    const char* end = nullptr;
    bench.rst = 1;
    while (!end) {
        bench.clk = 0;
        bench.eval();
        bench.clk = 1;
        bench.eval();
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
