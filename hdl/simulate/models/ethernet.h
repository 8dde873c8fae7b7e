// The switch of models/ethernet.py in C++, as fast as a compiled simulation: the same seed, the same decisions in the same
// cycles.  Python is the specification; a test compares the two.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <fstream>
#include <map>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace ethernet {

using Frame = std::vector<uint8_t>;

// bits of a corrupted frame that are turned over at most, latencies by which one is overtaken, bytes beside a frame
constexpr uint64_t MOST_FLIPS = 8, REORDER_LATENCIES = 4, CABLE_BYTES = 24;

enum Purpose : uint64_t { LOSS, DUPLICATE, REORDER, DELAY, SECOND_DELAY, CORRUPT, FLIPS, PLACE = 16 };

// SplitMix64's output of a state
inline uint64_t mixed(uint64_t word) {
    word += 0x9E3779B97F4A7C15ull;
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ word >> 27) * 0x94D049BB133111EBull;
    return word ^ word >> 31;
}

inline uint64_t chance(uint64_t seed, uint64_t port, uint64_t number, uint64_t purpose) {
    uint64_t word = mixed(seed);
    for (uint64_t part : {port, number, purpose}) word = mixed(word ^ part);
    return word;
}

struct Down {
    int port;
    uint64_t first, end;
};

struct Counts {
    uint64_t in = 0, lost = 0, doubled = 0, reordered = 0, corrupted = 0, down = 0, out = 0;
};

// What a file of `EthernetSwitch.text` says: a word, then its numbers, a line each.
struct Rules {
    uint64_t seed = 1, latency = 0;
    // bits that a cable carries a cycle, as a fraction; 0: a frame takes no time
    uint64_t bits = 0, per_cycles = 1;
    // of 2^32
    uint64_t loss = 0, duplicate = 0, reorder = 0, corrupt = 0;
    std::vector<Down> down;
    // MAC address -> port
    std::map<uint64_t, int> ports;

    static Rules read(const std::string& path) {
        Rules rules;
        std::ifstream file(path);
        if (!file) throw std::runtime_error("no " + path);
        std::map<std::string, uint64_t*> numbers{
            {"seed", &rules.seed}, {"latency", &rules.latency}, {"bits", &rules.bits}, {"per_cycles", &rules.per_cycles},
            {"loss", &rules.loss}, {"duplicate", &rules.duplicate}, {"reorder", &rules.reorder},
            {"corrupt", &rules.corrupt}};
        for (std::string word; file >> word;) {
            if (numbers.count(word)) {
                file >> *numbers[word];
            } else if (word == "down") {
                Down down;
                file >> down.port >> down.first >> down.end;
                rules.down.push_back(down);
            } else if (word == "port") {
                uint64_t mac;
                int port;
                file >> mac >> port;
                rules.ports[mac] = port;
            } else {
                throw std::runtime_error(path + " says " + word);
            }
            if (!file) throw std::runtime_error(path + ": no number behind " + word);
        }
        return rules;
    }
};

// a frame on its way
struct Waiting {
    // the cycle from which it may go out, that in which it came, its number among those from its port, and which copy of it
    // this is
    uint64_t ready, entered, number, copy;
    int source, target;
    Frame frame;
    // those that may go out at once: in an order that depends on no other port
    bool operator<(const Waiting& other) const {
        return std::tie(other.ready, other.entered, other.source, other.number, other.copy) <
               std::tie(ready, entered, source, number, copy);
    }
};

class Switch {
public:
    std::map<std::pair<int, int>, Counts> counts;
    // to ports that are elsewhere, since they were taken last
    std::vector<Waiting> away;

    explicit Switch(const Rules& rules) : rules_(rules) {
        for (const auto& entry : rules.ports) leaving_[entry.second], free_[entry.second] = 0;
    }

    bool idle() const {
        for (const auto& entry : leaving_) if (!entry.second.empty()) return false;
        return under_way_.empty();
    }

    // only these ports are here: what goes to others waits in `away`
    void keep(const std::set<int>& ports) { here_ = ports; }

    // a frame from a port that is elsewhere
    void come(Waiting&& frame) { under_way_.push(std::move(frame)); }

    // of a cycle, and those that a frame occupies a cable
    uint64_t parts() const { return rules_.bits ? rules_.bits : 1; }
    uint64_t cable_parts(size_t bytes) const { return rules_.bits ? 8 * (bytes + CABLE_BYTES) * rules_.per_cycles : 0; }

    // a whole frame has come from a port, without preamble and FCS
    void enter(int port, const Frame& frame, uint64_t now) {
        uint64_t number = numbers_[port]++, mac = 0;
        for (size_t at = 0; at < std::min<size_t>(6, frame.size()); at++) mac = mac << 8 | frame[at];
        auto known = rules_.ports.find(mac);
        if (known != rules_.ports.end()) {
            forward(port, known->second, frame, number, now);
        } else {
            for (const auto& entry : leaving_) if (entry.first != port) forward(port, entry.first, frame, number, now);
        }
    }

    // (port, frame) of all that have gone out whole by this cycle since the last call, in the order of ports
    template <class Take> void leave(uint64_t now, Take take) {
        while (!under_way_.empty() && under_way_.top().ready <= now) {
            Waiting next = under_way_.top();
            under_way_.pop();
            uint64_t ends = std::max(next.ready * parts(), free_[next.target]) + cable_parts(next.frame.size());
            free_[next.target] = ends;
            leaving_[next.target].push_back({ends, next.source, std::move(next.frame)});
        }
        for (auto& entry : leaving_) {
            int port = entry.first;
            std::deque<Gone>& queue = entry.second;
            while (!queue.empty() && queue.front().ends <= now * parts()) {
                Gone gone = std::move(queue.front());
                queue.pop_front();
                if (down(port, gone.ends / parts())) {
                    counts[{gone.source, port}].down++;
                } else {
                    counts[{gone.source, port}].out++;
                    take(port, gone.frame);
                }
            }
        }
    }

private:
    struct Gone {
        uint64_t ends;
        int source;
        Frame frame;
    };

    Rules rules_;
    std::map<int, uint64_t> numbers_, free_;
    std::map<int, std::deque<Gone>> leaving_;
    std::priority_queue<Waiting> under_way_;
    // empty: all are
    std::set<int> here_;

    void send(Waiting&& frame) {
        if (here_.empty() || here_.count(frame.target)) under_way_.push(std::move(frame));
        else away.push_back(std::move(frame));
    }

    bool down(int port, uint64_t now) const {
        for (const Down& one : rules_.down) if (one.port == port && one.first <= now && now < one.end) return true;
        return false;
    }

    void forward(int source, int target, const Frame& given, uint64_t number, uint64_t now) {
        auto word = [&](uint64_t purpose) { return chance(rules_.seed, source, number, purpose); };
        auto hit = [&](uint64_t share, Purpose purpose) { return word(purpose) >> 32 < share; };
        Counts& count = counts[{source, target}];
        count.in++;
        if (down(source, now)) {
            count.down++;
            return;
        }
        if (hit(rules_.loss, LOSS)) {
            count.lost++;
            return;
        }
        Frame frame = given;
        if (hit(rules_.corrupt, CORRUPT)) {
            count.corrupted++;
            std::set<uint64_t> places;
            uint64_t flips = 1 + word(FLIPS) % MOST_FLIPS;
            for (uint64_t flip = 0; flip < flips; flip++) places.insert(word(PLACE + flip) % (8 * frame.size()));
            for (uint64_t place : places) frame[place / 8] ^= uint8_t(1u << place % 8);
        }
        uint64_t span = std::max<uint64_t>(1, REORDER_LATENCIES * rules_.latency), ready = now + rules_.latency;
        uint64_t delay = 0;
        if (hit(rules_.reorder, REORDER)) {
            count.reordered++;
            delay = 1 + word(DELAY) % span;
        }
        bool doubled = hit(rules_.duplicate, DUPLICATE);
        send({ready + delay, now, number, 0, source, target, frame});
        if (doubled) {
            count.doubled++;
            send({ready + word(SECOND_DELAY) % span, now, number, 1, source, target, std::move(frame)});
        }
    }
};

}  // namespace ethernet
