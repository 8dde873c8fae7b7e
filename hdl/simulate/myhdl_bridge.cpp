// A Verilated module that speaks MyHDL's co-simulation protocol, as MyHDL's VPI module for Icarus does: MyHDL starts
// this program with two pipes, and drives and reads the ports of module `bridge` through them.
//
// Messages are text, one write each.  To MyHDL once: "FROM 0 name bits …" (what it drives) and "TO 0 name bits …" (what
// it reads), then "START", each answered by "OK".  Afterwards MyHDL sends "time", or "time value …" with the hexadecimal
// values of all that it drives, and gets "time name value …" with what has changed.
//
// "ports.inc" lists the ports: DRIVEN(member, "name", bits) or READ(member, "name", bits).
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include "Vbridge.h"
#include "verilated.h"

namespace {

using Words = std::vector<uint32_t>;

template <class T>
std::enable_if_t<std::is_integral<T>::value> assign(T& port, const Words& words) {
    uint64_t value = words[0];
    if (words.size() > 1) value |= uint64_t(words[1]) << 32;
    port = T(value);
}

template <std::size_t N>
void assign(VlWide<N>& port, const Words& words) {
    for (std::size_t i = 0; i < N; ++i) port[i] = words[i];
}

template <class T>
std::enable_if_t<std::is_integral<T>::value> fetch(const T& port, Words& words) {
    words[0] = uint32_t(port);
    if (words.size() > 1) words[1] = uint32_t(uint64_t(port) >> 32);
}

template <std::size_t N>
void fetch(const VlWide<N>& port, Words& words) {
    for (std::size_t i = 0; i < N; ++i) words[i] = port[i];
}

struct Port {
    const char* name;
    int bits;
    // of a port that MyHDL drives
    void (*drive)(Vbridge&, const Words&);
    // of a port that MyHDL reads
    void (*read)(Vbridge&, Words&);
    Words words;
    bool told;
};

Words room(int bits) { return Words((bits + 31) / 32); }

std::vector<Port> ports() {
    return {
#define DRIVEN(member, name, bits) \
    {name, bits, [](Vbridge& top, const Words& w) { assign(top.member, w); }, nullptr, room(bits), false},
#define READ(member, name, bits) \
    {name, bits, nullptr, [](Vbridge& top, Words& w) { fetch(top.member, w); }, room(bits), false},
#include "ports.inc"
    };
}

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "co-simulation: %s\n", what);
    std::exit(2);
}

int pipe_of(const char* variable) {
    const char* text = std::getenv(variable);
    if (!text) fail("start this program through myhdl.Cosimulation");
    return std::atoi(text);
}

class Pipes {
  public:
    void send(const std::string& message) const {
        if (::write(to_, message.data(), message.size()) != ssize_t(message.size())) std::exit(0);
    }

    // false once MyHDL has ended
    bool receive(std::string& message) {
        const ssize_t count = ::read(from_, buffer_.data(), buffer_.size());
        if (count <= 0) return false;
        message.assign(buffer_.data(), std::size_t(count));
        return true;
    }

    void greet(const std::string& message) {
        std::string answer;
        send(message);
        if (!receive(answer)) std::exit(0);
    }

  private:
    int to_ = pipe_of("MYHDL_TO_PIPE"), from_ = pipe_of("MYHDL_FROM_PIPE");
    std::vector<char> buffer_ = std::vector<char>(1 << 20);
};

// the words of a hexadecimal number
void parse(const char* begin, const char* end, Words& words) {
    std::fill(words.begin(), words.end(), 0);
    unsigned place = 0;
    for (const char* at = end; at != begin; ++place) {
        const char digit = char(std::tolower(*--at));
        const uint32_t value = uint32_t(digit <= '9' ? digit - '0' : digit - 'a' + 10);
        if (place / 8 < words.size()) words[place / 8] |= value << (4 * (place % 8));
    }
}

void append_hex(std::string& text, const Words& words) {
    char digits[9];
    std::size_t top = words.size() - 1;
    while (top && !words[top]) --top;
    std::snprintf(digits, sizeof digits, "%x", words[top]);
    text += digits;
    while (top--) {
        std::snprintf(digits, sizeof digits, "%08x", words[top]);
        text += digits;
    }
}

std::string greeting(const char* kind, const std::vector<Port>& all, bool driven) {
    std::string text = kind;
    text += " 0 ";
    for (const Port& port : all)
        if ((port.drive != nullptr) == driven) text += std::string(port.name) + " " + std::to_string(port.bits) + " ";
    return text;
}

// sets what MyHDL drives; false where the message holds the time alone
bool apply(const std::string& message, Vbridge& top, std::vector<Port>& all) {
    const char *at = message.c_str(), *end = at + message.size();
    const auto word = [&](const char*& from, const char*& to) {
        while (at != end && *at == ' ') ++at;
        from = at;
        while (at != end && *at != ' ') ++at;
        to = at;
        return from != to;
    };
    const char *from, *to;
    word(from, to);
    bool any = false;
    for (Port& port : all) {
        if (!port.drive) continue;
        if (!word(from, to)) {
            if (any) fail("a message was cut: too many bits of ports");
            return false;
        }
        any = true;
        parse(from, to, port.words);
        port.drive(top, port.words);
    }
    return any;
}

void tell(const Pipes& pipes, const std::string& message, Vbridge& top, std::vector<Port>& all) {
    std::string text = message.substr(0, message.find(' ')) + " ";
    Words now;
    for (Port& port : all) {
        if (!port.read) continue;
        now = room(port.bits);
        port.read(top, now);
        if (port.told && now == port.words) continue;
        port.words = now;
        port.told = true;
        text += port.name;
        text += ' ';
        append_hex(text, now);
        text += ' ';
    }
    pipes.send(text);
}

}  // namespace

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vbridge top{&context};
    std::vector<Port> all = ports();
    Pipes pipes;
    pipes.greet(greeting("FROM", all, true));
    pipes.greet(greeting("TO", all, false));
    pipes.greet("START");
    top.eval();
    std::string message = "0";
    tell(pipes, message, top, all);
    while (pipes.receive(message)) {
        if (apply(message, top, all)) {
            context.time(std::strtoull(message.c_str(), nullptr, 10));
            top.eval();
        }
        if (context.gotFinish()) break;
        tell(pipes, message, top, all);
    }
    top.final();
    return 0;
}
