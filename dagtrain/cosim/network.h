// The MACs of all FPGAs of a bench, the switch between them and, at one more port of it, a host outside.
//
// macs.inc lists the MACs in the order of the switch's ports; behind them comes the host's.  Before each rising edge of the
// clock at which a MAC takes beats `sample` looks at what it is given, behind that of the one at which it gives some `drive`
// says what.  The switch works in cycles of the network's clock.  A frame enters it with its last beat, and comes out of it
// whole before its first beat is given.
//
// +host=FD: a socket over which whole frames pass between the host's port and another program, numbers as this machine has
// them.  At cycles that the host chooses, 0 first, the bench says: u64 cycle, u32 frames, and of each u64 cycle, u32 bytes,
// bytes: what came out since then.  The host answers: u64 next cycle, u32 frames, u32 whether it has all that it waits for,
// and of each frame the same: those that enter from now on, in the order of cycles.  So nothing depends on how long the host
// takes.  When it closes the socket the bench ends.
// +resets=PORT:FIRST:END,…: the FPGA at a port and its MAC are in reset in these cycles: a frame that it sends is cut, and
// those that come are not heard.
// +frames: every frame is written to frames.bin: u64 cycle, u16 port, u16 way (0: from the port, 1: to it), u32 bytes, bytes.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

struct MacPins {
    // of the switch
    int port;
    bool avalon;
    // of a beat
    int bytes;
    // at which it takes and gives beats: places among the clocks of the bench
    int tx_clock, rx_clock;
    const CData* tx_valid;
    CData* tx_ready;
    // the last two: tkeep or empty, and startofpacket, which AXI4-Stream has not
    const void* tx_data;
    const CData* tx_last;
    const void* tx_size;
    const CData* tx_first;
    CData* rx_valid;
    void* rx_data;
    CData *rx_last, *rx_bad;
    void* rx_size;
    CData* rx_first;
    CData* reset;
};

// what went into the switch from a port to another one
struct Sent {
    uint64_t frames = 0, data = 0, again = 0, bytes = 0, again_bytes = 0;
    // behind the newest DATA frame, in its epoch
    uint32_t next = 0, epoch = 1u << 16;
};

[[noreturn]] static void fail(const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::exit(1);
}

class Mac {
public:
    Mac(const MacPins& pins, uint64_t seed, unsigned stall) : pins_(pins), stall_(stall) {
        salt_ = ethernet::mixed(seed ^ uint64_t(pins.port + 1) << 40);
        beat_.resize(pins.bytes);
    }

    // what the MAC is given in this cycle; whether a frame ends there, which is then `frame`
    bool sample(uint64_t cycle, ethernet::Frame& frame) {
        if (!*pins_.tx_valid) {
            if (!frame_.empty() || waiting_) wrong(cycle, "valid fell inside a frame");
            return false;
        }
        uint64_t size = 0;
        std::memcpy(&size, pins_.tx_size, pins_.avalon || pins_.bytes < 8 ? 1 : pins_.bytes / 8);
        uint64_t held = held_bytes(size, cycle);
        bool last = *pins_.tx_last;
        if (pins_.avalon && bool(*pins_.tx_first) != frame_.empty()) wrong(cycle, "a frame's first beat has another mark");
        if (held != uint64_t(pins_.bytes) && !last) wrong(cycle, "a beat that is not the last is not full");
        std::vector<uint8_t> beat(pins_.bytes);
        std::memcpy(beat.data(), pins_.tx_data, pins_.bytes);
        if (waiting_ && (beat != beat_ || last != was_last_ || size != was_size_)) wrong(cycle, "a beat changed while it waited");
        beat_ = beat, was_last_ = last, was_size_ = size, waiting_ = !*pins_.tx_ready;
        if (waiting_) return false;
        if (pins_.avalon) std::reverse(beat.begin(), beat.end());
        if (frame_.empty()) began_ = cycle;
        frame_.insert(frame_.end(), beat.begin(), beat.begin() + held);
        if (!last) return false;
        frame.swap(frame_);
        frame_.clear();
        return true;
    }

    // the cable is busy for so many parts of a cycle from the first beat of the frame on that has just ended
    void occupy(uint64_t cable_parts, uint64_t parts) { free_ = std::max(free_, began_ * parts) + cable_parts; }

    bool idle() const { return arriving_.empty() && frame_.empty() && !waiting_; }

    void arrive(const ethernet::Frame& frame) { arriving_.push_back(frame); }

    bool takes_at(int clock) const { return pins_.tx_clock == clock; }

    bool gives_at(int clock) const { return pins_.rx_clock == clock; }

    int port() const { return pins_.port; }

    bool resets() const { return *pins_.reset; }

    // in reset with the FPGA, or not any more
    void reset(bool held) {
        *pins_.reset = held;
        if (!held) return;
        *pins_.rx_valid = 0, *pins_.tx_ready = 0;
        frame_.clear(), arriving_.clear();
        waiting_ = false, at_ = 0;
    }

    // whether the MAC takes a beat behind this edge of its clock
    void take(uint64_t cycle, uint64_t parts, uint64_t edge) {
        bool inside = !frame_.empty() || waiting_;
        *pins_.tx_ready = (inside || free_ <= (cycle + 1) * parts) && !stalls(edge, 0);
    }

    // what the MAC gives behind this edge of its clock
    void give(uint64_t edge) {
        bool valid = !arriving_.empty() && !stalls(edge, 1);
        *pins_.rx_valid = valid;
        *pins_.rx_bad = 0;
        if (!valid) return;
        const ethernet::Frame& frame = arriving_.front();
        size_t held = std::min<size_t>(pins_.bytes, frame.size() - at_);
        std::vector<uint8_t> beat(pins_.bytes, uint8_t(edge));
        std::copy_n(frame.begin() + at_, held, beat.begin());
        if (pins_.avalon) std::reverse(beat.begin(), beat.end());
        std::memcpy(pins_.rx_data, beat.data(), pins_.bytes);
        uint64_t size = pins_.avalon ? pins_.bytes - held : held == 64 ? ~0ull : (1ull << held) - 1;
        std::memcpy(pins_.rx_size, &size, pins_.avalon ? 1 : pins_.bytes / 8);
        if (pins_.avalon) *pins_.rx_first = at_ == 0;
        at_ += held;
        *pins_.rx_last = at_ == frame.size();
        if (at_ == frame.size()) arriving_.pop_front(), at_ = 0;
    }

private:
    MacPins pins_;
    unsigned stall_;
    uint64_t salt_, began_ = 0, free_ = 0, was_size_ = 0;
    ethernet::Frame frame_;
    std::vector<uint8_t> beat_;
    bool waiting_ = false, was_last_ = false;
    std::deque<ethernet::Frame> arriving_;
    size_t at_ = 0;

    bool stalls(uint64_t edge, uint64_t way) const { return (ethernet::mixed(salt_ ^ (2 * edge + way)) & 255) < stall_; }

    uint64_t held_bytes(uint64_t size, uint64_t cycle) const {
        if (pins_.avalon) return pins_.bytes - size;
        uint64_t held = __builtin_popcountll(size);
        if (!held || size != (held == 64 ? ~0ull : (1ull << held) - 1)) wrong(cycle, "bytes of a beat are not its first ones");
        return held;
    }

    [[noreturn]] void wrong(uint64_t cycle, const std::string& what) const {
        fail("MAC " + std::to_string(pins_.port) + ", cycle " + std::to_string(cycle) + ": " + what);
    }
};

class Network {
public:
    Network(VerilatedContext& context, const std::vector<MacPins>& pins)
        : rules_(ethernet::Rules::read("switch.txt")), switch_(rules_), host_port_(int(pins.size())) {
        unsigned long long number;
        unsigned stall = told(context, "mac_stall=", number) ? unsigned(number) : 0;
        for (const MacPins& one : pins) {
            macs_.emplace_back(one, rules_.seed, stall);
            if (one.rx_clock) heard_ = CROSSED_CYCLES;
        }
        if (told(context, "host=", number)) host_ = int(number);
        read_resets(context);
        if (*context.commandArgsPlusMatch("frames")) log_ = std::fopen("frames.bin", "wb");
    }

    // where others have some of the FPGAs: who has each port's, by rank, and who this is; the first has the host's port
    void share(const std::vector<int>& homes, int own) {
        host_port_ = int(homes.size());
        std::set<int> here;
        if (own == 0) here.insert(host_port_);
        for (const Mac& mac : macs_) here.insert(mac.port());
        switch_.keep(here);
    }

    // frames to ports of others, and one from there
    std::vector<ethernet::Waiting>& away() { return switch_.away; }
    void come(ethernet::Waiting&& frame) { switch_.come(std::move(frame)); }

    // false: the host is gone
    bool drive(uint64_t cycle) {
        if (host_ >= 0 && cycle >= next_ && !exchange(cycle)) return false;
        while (!entering_.empty() && entering_.front().cycle <= cycle) {
            enter(host_port_, entering_.front().frame, cycle);
            entering_.pop_front();
        }
        switch_.leave(cycle, [&](int port, const ethernet::Frame& frame) {
            if (resetting(port, cycle)) return;
            log(cycle, port, 1, frame);
            if (port == host_port_ && host_ >= 0) leaving_.push_back({cycle, frame});
            for (Mac& mac : macs_)
                if (mac.port() == port) mac.arrive(frame);
        });
        for (Mac& mac : macs_) mac.reset(resetting(mac.port(), cycle));
        cycle_ = cycle;
        rose(0, cycle);
        return true;
    }

    // what MACs do behind so many edges of this clock
    void rose(int clock, uint64_t edge) {
        for (Mac& mac : macs_) {
            if (mac.resets()) continue;
            if (mac.takes_at(clock)) mac.take(cycle_, parts(), edge);
            if (mac.gives_at(clock)) mac.give(edge);
        }
    }

    // whether the host has all, and nothing is on its way
    bool quiet() const {
        bool quiet = (host_ < 0 || done_) && switch_.idle() && leaving_.empty() && entering_.empty();
        for (const Mac& mac : macs_) quiet &= mac.idle();
        return quiet && switch_.away.empty();
    }

    // cycles for which it has to stay so until a bench that has finished may end: what was on its way has been heard
    uint64_t heard() const { return heard_; }

    bool ends() {
        quiet_ = quiet() ? quiet_ + 1 : 0;
        return quiet_ > heard_;
    }

    // before an edge of this clock
    void sample(uint64_t cycle, int clock) {
        for (Mac& mac : macs_) {
            ethernet::Frame frame;
            if (mac.resets() || !mac.takes_at(clock) || !mac.sample(cycle, frame)) continue;
            mac.occupy(switch_.cable_parts(frame.size()), parts());
            enter(mac.port(), frame, cycle);
        }
    }

    // a line of counts for each pair of ports
    void close() {
        FILE* file = std::fopen("network.txt", "w");
        for (const auto& entry : switch_.counts) {
            const std::pair<int, int>& pair = entry.first;
            const ethernet::Counts& c = entry.second;
            const Sent& sent = sent_[pair];
            for (uint64_t number : {uint64_t(pair.first), uint64_t(pair.second), c.in, c.lost, c.doubled, c.reordered,
                                    c.corrupted, c.down, c.out, sent.frames, sent.data, sent.again, sent.bytes,
                                    sent.again_bytes})
                std::fprintf(file, "%llu ", (unsigned long long)number);
            std::fprintf(file, "\n");
        }
        std::fclose(file);
        if (log_) std::fclose(log_);
        if (host_ >= 0) ::close(host_);
    }

private:
    struct Stamped {
        uint64_t cycle;
        ethernet::Frame frame;
    };

    ethernet::Rules rules_;
    ethernet::Switch switch_;
    std::vector<Mac> macs_;
    int host_port_, host_ = -1;
    uint64_t next_ = 0, quiet_ = 0, cycle_ = 0;
    uint32_t done_ = 0;
    std::vector<Stamped> leaving_;
    std::deque<Stamped> entering_;
    std::map<std::pair<int, int>, Sent> sent_;
    FILE* log_ = nullptr;
    std::vector<ethernet::Down> resets_;

    void read_resets(VerilatedContext& context) {
        const char* text = context.commandArgsPlusMatch("resets=");
        if (!*text) return;
        std::istringstream told(text + std::strlen("+resets="));
        char between;
        for (ethernet::Down one; told >> one.port >> between >> one.first >> between >> one.end; told >> between)
            resets_.push_back(one);
    }

    bool resetting(int port, uint64_t cycle) const {
        for (const ethernet::Down& one : resets_)
            if (one.port == port && one.first <= cycle && cycle < one.end) return true;
        return false;
    }

    static bool told(VerilatedContext& context, const char* name, unsigned long long& value) {
        const char* argument = context.commandArgsPlusMatch(name);
        if (!*argument) return false;
        value = std::strtoull(argument + 1 + std::strlen(name), nullptr, 10);
        return true;
    }

    uint64_t parts() const { return switch_.parts(); }

    void log(uint64_t cycle, int port, int way, const ethernet::Frame& frame) {
        if (!log_) return;
        uint16_t where[2] = {uint16_t(port), uint16_t(way)};
        uint32_t bytes = uint32_t(frame.size());
        std::fwrite(&cycle, 8, 1, log_);
        std::fwrite(where, 4, 1, log_);
        std::fwrite(&bytes, 4, 1, log_);
        std::fwrite(frame.data(), 1, frame.size(), log_);
    }

    static uint64_t number(const ethernet::Frame& frame, size_t at, size_t bytes) {
        uint64_t found = 0;
        for (size_t k = at; k < at + bytes && k < frame.size(); k++) found = found << 8 | frame[k];
        return found;
    }

    void enter(int port, const ethernet::Frame& frame, uint64_t cycle) {
        log(cycle, port, 0, frame);
        auto target = rules_.ports.find(number(frame, 0, 6));
        if (target != rules_.ports.end()) count(sent_[{port, target->second}], frame);
        switch_.enter(port, frame, cycle);
    }

    static void count(Sent& sent, const ethernet::Frame& frame) {
        sent.frames++;
        sent.bytes += frame.size() + ethernet::CABLE_BYTES;
        if ((number(frame, KIND_AT, 1) & 15) != DATA) return;
        sent.data++;
        uint32_t epoch = uint32_t(number(frame, EPOCH_AT, 2)), sequence = uint32_t(number(frame, SEQUENCE_AT, 4));
        if (epoch == sent.epoch && int32_t(sequence - sent.next) < 0) {
            sent.again++;
            sent.again_bytes += frame.size() + ethernet::CABLE_BYTES;
        } else {
            sent.next = sequence + 1;
            sent.epoch = epoch;
        }
    }

    // of hdl.link.ethernet.frame
    static constexpr size_t KIND_AT = 42, EPOCH_AT = 48, SEQUENCE_AT = 50;
    static constexpr uint64_t DATA = 1;
    // in which a port counts what it has got, and where a frame, but for a very long one, has to cross to its clock first; a
    // peer whose acknowledgement was lost is not quiet for much longer
    static constexpr uint64_t HEARD_CYCLES = 64, CROSSED_CYCLES = 512;
    uint64_t heard_ = HEARD_CYCLES;

    bool exchange(uint64_t cycle) {
        std::vector<uint8_t> told;
        auto put = [&](const void* from, size_t bytes) {
            told.insert(told.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + bytes);
        };
        uint32_t count = uint32_t(leaving_.size());
        put(&cycle, 8), put(&count, 4);
        for (const Stamped& one : leaving_) {
            uint32_t bytes = uint32_t(one.frame.size());
            put(&one.cycle, 8), put(&bytes, 4), put(one.frame.data(), bytes);
        }
        leaving_.clear();
        for (size_t at = 0; at < told.size();) {
            ssize_t sent = ::send(host_, told.data() + at, told.size() - at, MSG_NOSIGNAL);
            if (sent <= 0) return false;
            at += sent;
        }
        if (!take(&next_, 8) || !take(&count, 4) || !take(&done_, 4)) return false;
        if (next_ <= cycle) fail("the host asked for cycle " + std::to_string(next_) + " in " + std::to_string(cycle));
        while (count--) {
            Stamped one;
            uint32_t bytes;
            if (!take(&one.cycle, 8) || !take(&bytes, 4)) return false;
            one.frame.resize(bytes);
            if (!take(one.frame.data(), bytes)) return false;
            entering_.push_back(std::move(one));
        }
        return true;
    }

    bool take(void* to, size_t bytes) {
        for (size_t at = 0; at < bytes;) {
            ssize_t came = ::read(host_, static_cast<uint8_t*>(to) + at, bytes - at);
            if (came <= 0) return false;
            at += came;
        }
        return true;
    }
};
