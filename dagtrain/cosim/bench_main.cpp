// Drives the clock of a self-checking Verilog bench until it says it has finished.
// Prints "frames N" on every change of the bench's progress counter and, at the end, "cycles N".
// When nothing moves: what the bench prints of every stream, and "stuck N".
// Arguments: limit on cycles without progress.
#include <cstdio>
#include <cstdlib>
#include "Vdagtrain_bench.h"
#include "verilated.h"

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    const unsigned long long limit = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1000000ull;
    Vdagtrain_bench bench{&context};
    unsigned long long cycles = 0, since_progress = 0;
    unsigned last_progress = 0, last_activity = 0;
    bench.rst = 1;
    bench.report = 0;
    while (!bench.finished) {
        bench.clk = 0;
        bench.eval();
        bench.clk = 1;
        bench.eval();
        if (++cycles == 16) bench.rst = 0;
        if (bench.network_error && !bench.rst) {
            std::printf("network error %llu\n", cycles);
            return 4;
        }
        if (bench.activity != last_activity) {
            last_activity = bench.activity;
            since_progress = 0;
        } else if (++since_progress > limit) {
            bench.report = 1;
            bench.clk = 0;
            bench.eval();
            bench.clk = 1;
            bench.eval();
            std::printf("stuck %llu\n", cycles);
            return 3;
        }
        if (bench.progress != last_progress) {
            last_progress = bench.progress;
            std::printf("frames %u %llu\n", last_progress, cycles);
            std::fflush(stdout);
        }
    }
    bench.final();
    std::printf("cycles %llu\n", cycles);
    return 0;
}
