// Drives the clocks of a self-checking Verilog bench until it says how it has ended.
// Prints "frames N cycles" on every change of the bench's progress counter, "at N" now and then, and, at the end,
// "cycles N", "stuck N", "network error N" or "memory error N".
//
// Where the bench has several clocks, clocks.inc lists them, `clk` first: port, period and first rising edge, in steps of
// time.  Edges that fall together are one step.
//
// Where FPGAs have Ethernet ports, macs.inc lists them, and the switch between them is network.inc.
//
// Where others have the rest of the cluster, windows.inc is what keeps the bench in step with them.
//
// Where the bench is to show what is inside circuits, inside.inc says of which, and Verilator was told so.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "Vdagtrain_bench.h"
#include "verilated.h"

#if __has_include("inside.inc")
#include "verilated_vcd_c.h"

// signals as they stand before each rising edge of any clock, in cycles from +waves_from to +waves_to
struct Inside {
    VerilatedVcdC file;
    unsigned long long first = 1, last = 0;

    Inside(VerilatedContext& context, Vdagtrain_bench& bench) {
        if (!told(context, "waves_from=", first) || !told(context, "waves_to=", last)) return;
        context.traceEverOn(true);
        bench.trace(&file, 99);
        file.open("inside.vcd");
    }
    static bool told(VerilatedContext& context, const char* name, unsigned long long& value) {
        const char* argument = context.commandArgsPlusMatch(name);
        if (!*argument) return false;
        value = std::strtoull(argument + 1 + std::strlen(name), nullptr, 10);
        return true;
    }
    void show(unsigned long long cycle, unsigned long long time) {
        if (first <= cycle && cycle <= last) file.dump(uint64_t(time));
    }
    void close() { if (first <= last) file.close(); }
};
#else
struct Inside {
    Inside(VerilatedContext&, Vdagtrain_bench&) {}
    void show(unsigned long long, unsigned long long) {}
    void close() {}
};
#endif

#if __has_include("macs.inc")
#include "ethernet.inc"
#include "network.inc"
#else
struct MacPins {};
struct Network {
    Network(VerilatedContext&, const std::vector<MacPins>&) {}
    void sample(unsigned long long, int) {}
    void rose(int, unsigned long long) {}
    bool drive(unsigned long long) { return true; }
    bool quiet() const { return true; }
    unsigned long long heard() const { return 0; }
    bool ends() { return true; }
    void close() {}
};
#endif

#if __has_include("windows.inc")
#include "windows.inc"
#else
// a bench of a whole cluster ends by itself
struct Windows {
    Vdagtrain_bench& bench;
    Network& network;

    Windows(VerilatedContext&, Vdagtrain_bench& bench, Network& network) : bench(bench), network(network) {}
    void sample(unsigned long long) {}
    void drive(unsigned long long) {}
    const char* end(unsigned long long) {
        if (bench.finished && network.ends()) return "cycles";
        if (bench.stuck) return "stuck";
        if (bench.memory_error && !bench.rst) return "memory error";
        if (bench.network_error && !bench.rst) return "network error";
        return nullptr;
    }
};
#endif

struct Clock {
    CData* pin;
    unsigned long long period, next;
    // that have risen
    unsigned long long edges;

    bool rises(unsigned long long now) const { return next == now && !*pin; }
};

// to the next rising edge of `clk`, which begins a cycle, all others on the way; returns at that edge
static void advance(Vdagtrain_bench& bench, std::vector<Clock>& clocks, Inside& inside, Network& network,
                    Windows& windows, unsigned long long cycle) {
    for (bool rose = false; !rose;) {
        unsigned long long now = clocks[0].next;
        for (const Clock& clock : clocks) now = clock.next < now ? clock.next : now;
        std::vector<int> rising;
        for (size_t k = 0; k < clocks.size(); k++)
            if (clocks[k].rises(now)) rising.push_back(int(k));
        if (!rising.empty()) inside.show(cycle, now);
        for (int k : rising)
            if (!bench.rst) network.sample(cycle, k);
        if (clocks[0].rises(now)) windows.sample(cycle);
        for (Clock& clock : clocks) {
            if (clock.next != now) continue;
            *clock.pin = !*clock.pin;
            clock.edges += *clock.pin;
            clock.next += *clock.pin ? clock.period / 2 : clock.period - clock.period / 2;
        }
        bench.eval();
        for (int k : rising) {
            // what MACs do at the first clock is said with its cycle
            if (k && !bench.rst) network.rose(k, clocks[k].edges);
            rose |= !k;
        }
    }
}

// as in simulator.py
constexpr unsigned long long kToldCycles = 1 << 13;

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
    std::vector<MacPins> macs{
#if __has_include("macs.inc")
#include "macs.inc"
#endif
    };
    Network network{context, macs};
    unsigned long long cycles = 0;
    unsigned last_progress = 0;
    const char* end = nullptr;
    Inside inside{context, bench};
    bench.rst = 1;
    bench.eval();
    Windows windows{context, bench, network};
    while (!end) {
        advance(bench, clocks, inside, network, windows, cycles + 1);
        if (++cycles == 16) bench.rst = 0;
        bool heard = bench.rst || network.drive(cycles);
        windows.drive(cycles);
        if (bench.progress != last_progress) {
            last_progress = bench.progress;
            std::printf("frames %u %llu\n", last_progress, cycles);
            std::fflush(stdout);
        }
        if (cycles % kToldCycles == 0) {
            std::printf("at %llu\n", cycles);
            std::fflush(stdout);
        }
        const char* ended = windows.end(cycles);
        end = ended ? ended : heard ? nullptr : "cycles";
    }
    inside.close();
    network.close();
    bench.final();
    std::printf("%s %llu\n", end, cycles);
    return 0;
}
