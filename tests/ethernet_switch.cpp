// The switch of models/ethernet.h on its own: reads "cycle port hexadecimal" of frames that enter, in the order of cycles,
// and prints the same of those that leave; then "count FROM TO in lost doubled reordered corrupted down out".
#include <cstdio>
#include <iostream>
#include "models/ethernet.h"

int main(int, char** argv) {
    ethernet::Switch network(ethernet::Rules::read(argv[1]));
    uint64_t now = 0;
    auto leave = [&](int port, const ethernet::Frame& frame) {
        std::printf("%llu %d ", (unsigned long long)now, port);
        for (uint8_t byte : frame) std::printf("%02x", byte);
        std::printf("\n");
    };
    uint64_t cycle;
    int port;
    for (std::string text; std::cin >> cycle >> port >> text;) {
        for (; now < cycle; now++) network.leave(now, leave);
        ethernet::Frame frame;
        for (size_t at = 0; at < text.size(); at += 2) frame.push_back(std::stoi(text.substr(at, 2), nullptr, 16));
        network.enter(port, frame, now);
    }
    for (; !network.idle(); now++) network.leave(now, leave);
    for (const auto& entry : network.counts) {
        const auto& pair = entry.first;
        const auto& c = entry.second;
        std::printf("count %d %d %llu %llu %llu %llu %llu %llu %llu\n", pair.first, pair.second, (unsigned long long)c.in,
                    (unsigned long long)c.lost, (unsigned long long)c.doubled, (unsigned long long)c.reordered,
                    (unsigned long long)c.corrupted, (unsigned long long)c.down, (unsigned long long)c.out);
    }
}
