// One of several programs that simulate a cluster together, each with some of its devices.
//
// All of them run ahead to the same cycle, and then exchange what has left for devices of the others, and how they stand.
// A window is no longer than a word is under way, so what comes at its end is needed in no cycle before.
//
// lanes.inc lists the ends of lanes between devices that are here and others; windows.txt says the rest.
// +windows=FD: a socket to the program that talks to the others.  At the end of a window the bench says a `Status`, and
// for each rank u32 bytes, bytes; it is told an `Orders`, and of each rank the same.  When that one closes the socket the
// bench ends.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

struct LanePins {
    int source, target;
    // of a word
    size_t bytes;
    // whether its words leave from here
    bool leaves;
    CData* valid;
    void* payload;
    // of a lane from elsewhere
    const CData* ready;
};

// dagtrain.cosim.windows.Status
struct Status {
    // the last cycle; behind which one what the bench counts has changed, and since when it has all; -1: never
    int64_t cycle, changed = -1, settled = -1;
    uint32_t progress = 0, fault = 0;
    // the last cycle in which the network with frames was not quiet, and for how many it has to be
    int64_t busy = -1;
    uint32_t heard = 0;
};

// dagtrain.cosim.windows.Orders
struct Orders {
    int64_t next;
    uint32_t over, halt, end;
};

enum Fault : uint32_t { NO_FAULT, MEMORY, NETWORK };
enum End : uint32_t { GOES_ON, FINISHED, STUCK, FAULTY, ABANDONED };

class Windows {
public:
    Windows(VerilatedContext& context, Vdagtrain_bench& bench, Network& network)
        : bench_(bench), network_(network), pins_{
#include "lanes.inc"
          } {
        std::ifstream file("windows.txt");
        int own, home;
        file >> own >> ranks_ >> latency_ >> room_;
        while (file >> home) homes_.push_back(home);
        const char* argument = context.commandArgsPlusMatch("windows=");
        if (!file.eof() || !*argument) fail("windows.txt or +windows= is missing");
        socket_ = std::atoi(argument + 1 + std::strlen("windows="));
        lanes_.resize(pins_.size());
        for (size_t number = 0; number < pins_.size(); number++) {
            const LanePins& pins = pins_[number];
            (pins.leaves ? leaving_ : arriving_)[{pins.source, pins.target}] = number;
        }
        status_.heard = uint32_t(network_.heard());
#if __has_include("macs.inc")
        network_.share(homes_, own);
#endif
        exchange(0);
    }

    // before the rising edge that begins a cycle
    void sample(int64_t cycle) {
        if (bench_.activity != activity_) activity_ = bench_.activity, status_.changed = cycle - 1;
        if (!bench_.settling) status_.settled = -1;
        else if (status_.settled < 0) status_.settled = cycle - 1;
        if (bench_.rst) return;
        for (size_t number = 0; number < pins_.size(); number++) {
            const LanePins& pins = pins_[number];
            Lane& lane = lanes_[number];
            if (!*pins.valid || !pins.leaves && !*pins.ready) continue;
            if (!pins.leaves) {
                lane.words.pop_front();
                lane.passed++;
                continue;
            }
            // nobody here knows whether the switch would still take it
            if (lane.passed - lane.taken >= room_)
                fail("the network between devices " + between(pins) + " is full in cycle " + std::to_string(cycle));
            lane.passed++;
            std::vector<uint8_t>& to = out_[homes_[pins.target]];
            head(to, WORD, pins.source, pins.target, 8 + pins.bytes);
            put(to, &cycle, 8), put(to, pins.payload, pins.bytes);
        }
    }

    // behind that edge
    void drive(int64_t cycle) {
        for (size_t number = 0; number < pins_.size(); number++) {
            const LanePins& pins = pins_[number];
            if (pins.leaves) continue;
            Lane& lane = lanes_[number];
            *pins.valid = !lane.words.empty() && lane.words.front().due <= cycle;
            if (*pins.valid) std::memcpy(pins.payload, lane.words.front().word.data(), pins.bytes);
        }
    }

    // how the bench ends behind a cycle, if it does
    const char* end(int64_t cycle) {
        if (!network_.quiet()) status_.busy = cycle;
        if (!bench_.rst) status_.fault = bench_.memory_error ? MEMORY : bench_.network_error ? NETWORK : NO_FAULT;
        if (cycle < next_ && !status_.fault) return nullptr;
        switch (exchange(cycle)) {
            case GOES_ON: return nullptr;
            case FINISHED: return "cycles";
            case STUCK: return "stuck";
            case FAULTY: return status_.fault == MEMORY ? "memory error" : "network error";
            default: return "abandoned";
        }
    }

private:
    struct Word {
        int64_t due;
        std::vector<uint8_t> word;
    };
    struct Lane {
        // words that have gone through its end here, and of those that left what the other end has given on
        uint64_t passed = 0, taken = 0;
        std::deque<Word> words;
    };
    // what a message is: u8 kind, u32 source and target of the lane, u32 bytes, bytes
    enum Kind : uint8_t { WORD, TAKEN, FRAME };

    Vdagtrain_bench& bench_;
    Network& network_;
    std::vector<LanePins> pins_;
    std::vector<Lane> lanes_;
    std::map<std::pair<int, int>, size_t> leaving_, arriving_;
    // of devices: who has it
    std::vector<int> homes_;
    size_t ranks_ = 0;
    int64_t latency_ = 0, next_ = 0;
    uint64_t room_ = 0;
    int socket_ = -1;
    uint32_t activity_ = 0;
    Status status_;
    std::map<int, std::vector<uint8_t>> out_;

    static std::string between(const LanePins& pins) {
        return std::to_string(pins.source) + " and " + std::to_string(pins.target);
    }

    static void put(std::vector<uint8_t>& to, const void* from, size_t bytes) {
        to.insert(to.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + bytes);
    }

    static void head(std::vector<uint8_t>& to, Kind kind, int source, int target, size_t bytes) {
        uint32_t numbers[3] = {uint32_t(source), uint32_t(target), uint32_t(bytes)};
        put(to, &kind, 1), put(to, numbers, sizeof numbers);
    }

    uint32_t exchange(int64_t cycle) {
        for (const auto& one : arriving_) {
            Lane& lane = lanes_[one.second];
            if (lane.passed == lane.taken) continue;
            lane.taken = lane.passed;
            std::vector<uint8_t>& to = out_[homes_[one.first.first]];
            head(to, TAKEN, one.first.first, one.first.second, 8);
            put(to, &lane.taken, 8);
        }
        give_frames();
        status_.cycle = cycle;
        status_.progress = bench_.progress;
        std::vector<uint8_t> told;
        put(told, &status_, sizeof status_);
        for (size_t rank = 0; rank < ranks_; rank++) {
            uint32_t bytes = uint32_t(out_[int(rank)].size());
            put(told, &bytes, 4), put(told, out_[int(rank)].data(), bytes);
        }
        out_.clear();
        give(told);
        Orders orders;
        take(&orders, sizeof orders);
        for (size_t rank = 0; rank < ranks_; rank++) {
            uint32_t bytes;
            take(&bytes, 4);
            std::vector<uint8_t> came(bytes);
            take(came.data(), bytes);
            for (size_t at = 0; at < bytes;) at += hear(came.data() + at, cycle);
        }
        next_ = orders.next;
        bench_.over = orders.over;
        bench_.halt = orders.halt;
        return orders.end;
    }

    // a message; returns its length
    size_t hear(const uint8_t* at, int64_t cycle) {
        uint32_t numbers[3];
        std::memcpy(numbers, at + 1, sizeof numbers);
        const uint8_t* body = at + 1 + sizeof numbers;
        std::pair<int, int> pair{int(numbers[0]), int(numbers[1])};
        if (*at == FRAME) {
            hear_frame(numbers, body, cycle);
        } else if (*at == WORD) {
            Word word;
            std::memcpy(&word.due, body, 8);
            // it is seen behind the edge before the one at which it is taken
            word.due += latency_ - 1;
            if (word.due <= cycle) late(word.due, cycle);
            word.word.assign(body + 8, body + numbers[2]);
            lanes_[arriving_.at(pair)].words.push_back(std::move(word));
        } else {
            std::memcpy(&lanes_[leaving_.at(pair)].taken, body, 8);
        }
        return 1 + sizeof numbers + numbers[2];
    }

#if __has_include("macs.inc")
    // a frame: u64 cycle from which it may go out, cycle in which it came, number, copy, and its bytes
    void give_frames() {
        for (const ethernet::Waiting& one : network_.away()) {
            // the host's port is the first rank's
            int home = one.target < int(homes_.size()) ? homes_[one.target] : 0;
            uint64_t told[4] = {one.ready, one.entered, one.number, one.copy};
            std::vector<uint8_t>& to = out_[home];
            head(to, FRAME, one.source, one.target, sizeof told + one.frame.size());
            put(to, told, sizeof told), put(to, one.frame.data(), one.frame.size());
        }
        network_.away().clear();
    }

    void hear_frame(const uint32_t* numbers, const uint8_t* body, int64_t cycle) {
        uint64_t told[4];
        std::memcpy(told, body, sizeof told);
        if (int64_t(told[0]) <= cycle) late(told[0], cycle);
        ethernet::Frame frame(body + sizeof told, body + numbers[2]);
        network_.come({told[0], told[1], told[2], told[3], int(numbers[0]), int(numbers[1]), std::move(frame)});
    }
#else
    void give_frames() {}
    void hear_frame(const uint32_t*, const uint8_t*, int64_t) { fail("a frame came where there are words alone"); }
#endif

    [[noreturn]] static void late(int64_t due, int64_t cycle) {
        fail("what is due in cycle " + std::to_string(due) + " came in cycle " + std::to_string(cycle) +
             ": the window is longer than it was under way");
    }

    [[noreturn]] static void fail(const std::string& text) {
        std::printf("%s\n", text.c_str());
        std::exit(1);
    }

    void give(const std::vector<uint8_t>& told) {
        for (size_t at = 0; at < told.size();) {
            ssize_t sent = ::send(socket_, told.data() + at, told.size() - at, MSG_NOSIGNAL);
            if (sent <= 0) fail("the other programs are gone");
            at += sent;
        }
    }

    void take(void* to, size_t bytes) {
        for (size_t at = 0; at < bytes;) {
            ssize_t came = ::read(socket_, static_cast<uint8_t*>(to) + at, bytes - at);
            if (came <= 0) fail("the other programs are gone");
            at += came;
        }
    }
};
