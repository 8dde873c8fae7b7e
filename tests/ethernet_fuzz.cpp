// Beats of frames into an Ethernet port, a line each: "idle cycles", "beat hex"; what comes of it, a line each.
//
//   W cycle payload   a word that the device gets
//   T cycle payload   a beat that it sends
//   S cycle dropped faults malformed reset current   what it says, whenever that changes
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "Vport.h"
#include "verilated.h"

template <typename T> void put(T& to, const std::string& hex) {
    unsigned long long value = 0;
    for (char c : hex) value = value << 4 | (c <= '9' ? c - '0' : c - 'a' + 10);
    to = static_cast<T>(value);
}
template <std::size_t N> void put(VlWide<N>& to, const std::string& hex) {
    for (std::size_t i = 0; i < N; i++) to[i] = 0;
    std::size_t bit = 0;
    for (auto c = hex.rbegin(); c != hex.rend(); ++c, bit += 4)
        to[bit / 32] |= static_cast<EData>(*c <= '9' ? *c - '0' : *c - 'a' + 10) << bit % 32;
}
template <typename T> void show(const T& from) { std::printf(" %llx", static_cast<unsigned long long>(from)); }
template <std::size_t N> void show(const VlWide<N>& from) {
    std::printf(" ");
    for (std::size_t i = N; i-- > 0;) std::printf("%08x", from[i]);
}
template <typename T> bool differs(const T& a, const T& b) { return a != b; }
template <std::size_t N> bool differs(const VlWide<N>& a, const VlWide<N>& b) {
    for (std::size_t i = 0; i < N; i++)
        if (a[i] != b[i]) return true;
    return false;
}

// of a port that has a key
template <typename P> auto put_key(P& port, const std::string& hex, int) -> decltype((void)port.key) {
    put(port.key, hex);
}
template <typename P> void put_key(P&, const std::string&, long) {}

int main(int, char** arguments) {
    VerilatedContext context;
    Vport port(&context);
    std::ifstream stimulus("stimulus.txt");
    unsigned long long cycle = 0;
    put(port.own, arguments[1]);
    put(port.others, arguments[2]);
    put(port.epoch, arguments[3]);
    put(port.digest, arguments[4]);
    put_key(port, arguments[5], 0);
    port.tx_ready = 1;
    port.words_ready = 1;
    auto dropped = port.dropped;
    auto faults = port.faults;
    auto flags = port.current;
    const auto step = [&](bool valid, const std::string& beat, bool reset) {
        port.rst = reset;
        port.rx_valid = valid;
        put(port.rx_payload, beat);
        port.clk = 0;
        port.eval();
        if (!reset) {
            if (port.words_valid) {
                std::printf("W %llu", cycle);
                show(port.words_payload);
                std::printf("\n");
            }
            if (port.tx_valid) {
                std::printf("T %llu", cycle);
                show(port.tx_payload);
                std::printf("\n");
            }
            const auto now = static_cast<decltype(flags)>(port.current ^ (port.malformed ? 0x4000 : 0) ^ (port.reset ? 0x8000 : 0));
            if (cycle == 0 || differs(dropped, port.dropped) || faults != port.faults || flags != now) {
                std::printf("S %llu", cycle);
                show(port.dropped);
                show(port.faults);
                show(port.malformed);
                show(port.reset);
                show(port.current);
                std::printf("\n");
                dropped = port.dropped;
                faults = port.faults;
                flags = now;
            }
            cycle++;
        }
        port.clk = 1;
        port.eval();
    };
    for (int i = 0; i < 4; i++) step(false, "0", true);
    std::string what, value;
    while (stimulus >> what >> value) {
        if (what == "beat") {
            step(true, value, false);
        } else {
            for (unsigned long long left = std::strtoull(value.c_str(), nullptr, 10); left; left--) step(false, "0", false);
        }
    }
    port.final();
    return 0;
}
