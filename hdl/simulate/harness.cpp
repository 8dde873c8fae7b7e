// Drives a Verilated circuit: seeded random sources and sinks, the stream contract, beats in and out of files.
// Compiled once: what belongs to one circuit is declared in harness.h and generated for it.
//
// usage: sim seed stall max_cycles drain        (stall: probability times 2^32)
// reads  in_<stream>.bin   payloads, each padded to whole little-endian 32-bit words
//        expected.txt      "<stream> <count>" a line
// writes out_<stream>.bin  the same for outputs; fires_<stream>.bin: 64-bit cycle numbers
//        result.txt        "ok <cycles>" | "deadlock <message>" | "violation <message>"

#include "harness.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

static const int kResetCycles = 4;
// every so many cycles one stream is probed between two clock edges
static const uint64_t kProbeCycles = 4;
using Words = std::vector<uint32_t>;

struct Rng {
    uint64_t state;
    explicit Rng(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull) {
        if (!state) state = 1;
        for (int i = 0; i < 8; ++i) next();
    }
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return uint32_t((state * 0x2545F4914F6CDD1Dull) >> 32);
    }
};

[[noreturn]] static void finish(const std::string& text) {
    std::ofstream("result.txt") << text << "\n";
    std::exit(0);
}

struct Stream {
    Port port;
    Rng rng;
    uint64_t stall;
    std::vector<uint32_t> data;  // inputs: all beats; outputs: the beats taken
    std::vector<uint64_t> fires;
    size_t count = 0, taken = 0;
    long expected = -1;
    bool waiting = false, patient = false, valid = false, ready = false;
    Words held, now;

    Stream(const Port& p, uint64_t seed, uint64_t stall_) : port(p), rng(seed), stall(stall_) {
        held.resize(port.words);
        now.resize(port.words);
    }
    bool stalls() { return rng.next() < stall; }
    std::string where(uint64_t cycle) const {
        return "stream " + std::string(port.name) + ", cycle " + std::to_string(cycle) + ": ";
    }
    // the contract, with the values just before the edge; true if a beat is transferred
    bool observe(uint64_t cycle) {
        if (waiting) {
            if (!valid) finish("violation " + where(cycle) + "valid fell before the beat was taken");
            if (now != held) finish("violation " + where(cycle) + "payload changed while valid waited for ready");
        }
        waiting = valid && !ready;
        if (waiting) held = now;
        return valid && ready;
    }
    void offer(Dut& dut) {
        if (valid) return;
        valid = taken < count && !stalls();
        for (int i = 0; i < port.words; ++i) now[i] = valid ? data[taken * port.words + i] : rng.next();
        if (!valid && port.width % 32) now[port.words - 1] &= (1u << (port.width % 32)) - 1;
        port.set_payload(dut, now.data());
        port.set_valid(dut, valid);
    }
    // what is driven here is turned round for a moment: what the circuit drives of the same stream may not follow; a
    // payload that is not offered may be anything, so none is offered for a probe
    void probe(Dut& dut, uint64_t cycle) {
        if (port.input) {
            if (!valid) return;
            const bool before = port.get_ready(dut);
            port.set_valid(dut, false);
            set_clock(dut, false);
            if (port.get_ready(dut) != before) follow(cycle);
            port.set_valid(dut, true);
        } else {
            const bool before = port.get_valid(dut);
            Words offered(port.words);
            port.get_payload(dut, offered.data());
            port.set_ready(dut, !ready);
            set_clock(dut, false);
            port.get_payload(dut, now.data());
            if (port.get_valid(dut) != before) follow(cycle);
            if (before && now != offered) finish("violation " + where(cycle) + "payload follows ready in the same cycle");
            port.set_ready(dut, ready);
        }
        set_clock(dut, false);
    }
    [[noreturn]] void follow(uint64_t cycle) const {
        finish("violation " + where(cycle) + "valid and ready follow one another in the same cycle");
    }
    void step_source(Dut& dut, uint64_t cycle) {
        ready = port.get_ready(dut);
        if (observe(cycle)) {
            fires.push_back(cycle);
            ++taken;
            valid = false;
        }
    }
    void step_sink(Dut& dut, uint64_t cycle) {
        valid = port.get_valid(dut);
        port.get_payload(dut, now.data());
        if (observe(cycle)) {
            data.insert(data.end(), now.begin(), now.end());
            fires.push_back(cycle);
            ++taken;
            patient = stall && rng.next() < 0x40000000u;
            if (expected >= 0 && long(taken) > expected)
                finish("violation output " + where(cycle) + "beat " + std::to_string(taken) + " came, only " +
                       std::to_string(expected) + " expected");
        }
    }
    void choose_ready(Dut& dut) {
        ready = !stalls() && (valid || !patient);
        port.set_ready(dut, ready);
    }
    bool done() const { return expected < 0 || long(taken) >= expected; }
};

template <class T>
static std::vector<T> read_file(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    if (!file) finish("violation cannot read " + name);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
    return values;
}

template <class T>
static void write_file(const std::string& name, const std::vector<T>& values) {
    std::ofstream file(name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(values.data()), std::streamsize(values.size() * sizeof(T)));
}

static std::string progress(const std::vector<Stream>& sources, const std::vector<Stream>& sinks) {
    std::ostringstream text;
    for (auto& s : sources) text << "; input " << s.port.name << ": " << s.taken << " of " << s.count << " beats taken";
    for (auto& s : sinks) {
        text << "; output " << s.port.name << ": " << s.taken << " of ";
        if (s.expected < 0) text << "any number beats";
        else text << s.expected << " beats";
    }
    return text.str().substr(2);
}

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    const uint64_t seed = std::strtoull(argv[1], nullptr, 10), stall = std::strtoull(argv[2], nullptr, 10);
    const uint64_t max_cycles = std::strtoull(argv[3], nullptr, 10), drain = std::strtoull(argv[4], nullptr, 10);
    Dut& dut = make_dut();
    std::map<std::string, long> expected;
    {
        std::ifstream file("expected.txt");
        std::string name;
        long count;
        while (file >> name >> count) expected[name] = count;
    }
    std::vector<Stream> sources, sinks;
    uint64_t number = 0;
    for (int i = 0; i < STREAM_COUNT; ++i) {
        const Port& port = STREAMS[i];
        Stream stream(port, seed * 1000003ull + ++number, stall);
        if (port.input) {
            stream.data = read_file<uint32_t>(std::string("in_") + port.name + ".bin");
            stream.count = stream.data.size() / port.words;
            sources.push_back(std::move(stream));
        } else {
            if (expected.count(port.name)) stream.expected = expected[port.name];
            sinks.push_back(std::move(stream));
        }
    }
    auto edge = [&](auto sample) {
        set_clock(dut, false);
        sample();
        set_clock(dut, true);
    };
    set_reset(dut, true);
    for (auto& s : sources) s.port.set_valid(dut, false);
    for (auto& s : sinks) s.port.set_ready(dut, false);
    for (int i = 0; i < kResetCycles; ++i) edge([] {});
    set_reset(dut, false);
    for (auto& s : sources) s.offer(dut);
    for (auto& s : sinks) {
        s.ready = !stall;
        s.port.set_ready(dut, s.ready);
    }
    bool done = false;
    uint64_t done_at = 0;
    for (uint64_t cycle = 0;;) {
        edge([&] {
            if (cycle % kProbeCycles == kProbeCycles - 1) {
                const size_t turn = cycle / kProbeCycles % (sources.size() + sinks.size());
                (turn < sources.size() ? sources[turn] : sinks[turn - sources.size()]).probe(dut, cycle);
            }
            for (auto& s : sources) s.step_source(dut, cycle);
            for (auto& s : sinks) s.step_sink(dut, cycle);
        });
        ++cycle;
        for (auto& s : sources) s.offer(dut);
        for (auto& s : sinks) s.choose_ready(dut);
        if (!done) {
            done = true;
            for (auto& s : sinks) done = done && s.done();
            if (done) done_at = cycle;
        }
        if (done && cycle >= done_at + drain) break;
        if (!done && cycle >= max_cycles) finish("deadlock " + progress(sources, sinks));
    }
    for (auto& s : sources) write_file(std::string("fires_") + s.port.name + ".bin", s.fires);
    for (auto& s : sinks) {
        write_file(std::string("fires_") + s.port.name + ".bin", s.fires);
        write_file(std::string("out_") + s.port.name + ".bin", s.data);
    }
    finish_dut(dut);
    finish("ok " + std::to_string(done_at));
}
