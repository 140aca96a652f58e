// What the programs share: the options of TCP, links whose only queue is the device's, and JSON.
//
// The programs use ns-3 through its public headers; what its defaults mean for a comparison is in README.md.
#pragma once

#include <ns3/applications-module.h>
#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#ifndef NS3_VERSION
#error "compile with peers/ns3/build, which passes ns-3's version on"
#endif

namespace peer
{

/// Ends the program with what was attempted, what is wrong with it and what to do.
[[noreturn]] inline void
Refuse(const std::string& what)
{
    std::cerr << what << " (--help lists the options)\n";
    std::exit(2);
}

/// How both TCP endpoints behave. The defaults are ns-3's own, but for the segment size and the buffers.
struct TcpOptions
{
    std::string congestion = "newreno"; ///< newreno, linux-reno, cubic or hybla
    std::string recovery = "prr";       ///< prr (RFC 6937) or classic (RFC 6675)
    bool sack = true;                   ///< selective acknowledgements (RFC 2018)
    bool hystart = true;                ///< CUBIC only: leave slow start early (HyStart)
    bool limitedTransmit = true;        ///< RFC 3042
    uint32_t mss = 1448;                ///< payload of a segment, bytes: with timestamps an IP packet of 1500
    uint32_t initialWindow = 10;        ///< segments (RFC 6928)
    uint32_t delackCount = 2;           ///< segments before an ACK must go
    ns3::Time delackTimeout = ns3::MilliSeconds(200);
    ns3::Time rtoMin = ns3::Seconds(1); ///< RFC 6298 §2.4
    uint32_t dataRetries = 6;           ///< expiries of the timer before the connection is given up
    uint32_t buffer = 0;                ///< send and receive buffer, bytes; 0: the program's choice

    /// Puts one option for each field on the command line.
    void AddTo(ns3::CommandLine& command);

    /// Makes the fields the defaults of every socket that is created from now on.
    void Apply() const;
};

/// A duplex link; `queue` is the limit in bytes of the drop-tail queue in front of either direction.
inline ns3::NetDeviceContainer
Connect(ns3::Ptr<ns3::Node> a, ns3::Ptr<ns3::Node> b, ns3::DataRate rate, ns3::Time delay, uint32_t queue)
{
    ns3::PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", ns3::DataRateValue(rate));
    link.SetChannelAttribute("Delay", ns3::TimeValue(delay));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", ns3::QueueSizeValue(ns3::QueueSize(ns3::BYTES, queue)));
    // Without flow control the traffic-control layer has no device queue to watch and installs no queue disc
    // (FqCoDel otherwise): packets wait and are dropped in the queue above and nowhere else.
    link.DisableFlowControl();
    return link.Install(a, b);
}

/// Gives the ends of a link addresses in a network of their own.
inline ns3::Ipv4InterfaceContainer
Address(const ns3::NetDeviceContainer& devices, ns3::Ipv4AddressHelper& addresses)
{
    auto interfaces = addresses.Assign(devices);
    addresses.NewNetwork();
    return interfaces;
}

/// The drop-tail queue in front of a link's direction.
inline ns3::Ptr<ns3::Queue<ns3::Packet>>
QueueOf(const ns3::NetDeviceContainer& devices, uint32_t end)
{
    return ns3::DynamicCast<ns3::PointToPointNetDevice>(devices.Get(end))->GetQueue();
}

/// Bytes that a path may hold, its queue included: eight times as much still fits TCP's largest window, 2^30 bytes
/// (RFC 7323 §2.3).
constexpr uint32_t kLargestPath = 130'000'000;

/// Bytes that a link holds in a round trip of `rtt`.
inline uint32_t
BandwidthDelayProduct(ns3::DataRate rate, ns3::Time rtt)
{
    const double bytes = rate.GetBitRate() * rtt.GetSeconds() / 8;
    if (bytes > kLargestPath)
    {
        Refuse("A bandwidth-delay product above 130 MB needs a window that TCP does not have: lower rate or delay");
    }
    return static_cast<uint32_t>(bytes);
}

/// A buffer in which a sender never waits for room: several times what the path and its queue hold.
inline uint32_t
BufferFor(uint32_t bdp, uint32_t queue)
{
    return 8 * std::min<uint64_t>(uint64_t{bdp} + queue, kLargestPath) + 1'000'000;
}

/// What a run cost, in seconds, without its set-up: real time and the processor's.
struct Cost
{
    double wall = 0;
    double cpu = 0;
};

/// Runs the simulation that has been set up.
inline Cost
RunTimed()
{
    const auto start = std::chrono::steady_clock::now();
    const auto cpuStart = std::clock();
    ns3::Simulator::Run();
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
            static_cast<double>(std::clock() - cpuStart) / CLOCKS_PER_SEC};
}

/// One JSON object, written member by member.
class Json
{
  public:
    explicit Json(std::ostream& out)
        : m_out(out)
    {
        m_out.precision(12);
        m_out << "{";
    }

    template <typename Number>
    Json& Member(const char* name, Number value)
    {
        Name(name);
        m_out << value;
        return *this;
    }

    Json& Member(const char* name, bool value)
    {
        Name(name);
        m_out << (value ? "true" : "false");
        return *this;
    }

    Json& Member(const char* name, const std::string& value)
    {
        Name(name);
        m_out << '"' << value << '"';
        return *this;
    }

    /// What is not there is null.
    Json& Member(const char* name, std::optional<double> value)
    {
        return value ? Member(name, *value) : Member(name, Literal{"null"});
    }

    /// Writes a member whose value `write` puts on the stream.
    template <typename Write>
    Json& Nested(const char* name, Write write)
    {
        Name(name);
        write(m_out);
        return *this;
    }

    void End()
    {
        m_out << "}";
    }

  private:
    struct Literal
    {
        const char* text;

        friend std::ostream& operator<<(std::ostream& out, const Literal& literal)
        {
            return out << literal.text;
        }
    };

    void Name(const char* name)
    {
        m_out << (std::exchange(m_first, false) ? "" : ", ") << '"' << name << "\": ";
    }

    std::ostream& m_out;
    bool m_first = true;
};

inline void
TcpOptions::AddTo(ns3::CommandLine& command)
{
    command.AddValue("congestion", "newreno, linux-reno, cubic or hybla", congestion);
    command.AddValue("recovery", "prr or classic", recovery);
    command.AddValue("sack", "0 or 1: selective acknowledgements", sack);
    command.AddValue("hystart", "0 or 1: CUBIC's early end of slow start", hystart);
    command.AddValue("limited-transmit", "0 or 1", limitedTransmit);
    command.AddValue("mss", "payload of a segment, bytes", mss);
    command.AddValue("initial-window", "segments", initialWindow);
    command.AddValue("delack", "segments before an ACK must go", delackCount);
    command.AddValue("delack-timeout", "how long an ACK may wait, like 200ms", delackTimeout);
    command.AddValue("rto-min", "floor of the retransmission timeout, like 1s", rtoMin);
    command.AddValue("data-retries", "timeouts in a row before the connection is given up", dataRetries);
    command.AddValue("buffer", "send and receive buffer, bytes; 0 chooses several BDPs", buffer);
}

/// The class that stands for a name on the command line, of those `known`.
inline ns3::TypeIdValue
TypeNamed(const std::string& name, std::initializer_list<std::pair<const char*, const char*>> known)
{
    for (const auto& [key, type] : known)
    {
        if (name == key)
        {
            return ns3::TypeIdValue(ns3::TypeId::LookupByName(type));
        }
    }
    Refuse("No such algorithm: " + name);
}

inline void
TcpOptions::Apply() const
{
    using namespace ns3;
    Config::SetDefault("ns3::TcpL4Protocol::SocketType",
                       TypeNamed(congestion,
                                 {{"newreno", "ns3::TcpNewReno"},
                                  {"linux-reno", "ns3::TcpLinuxReno"},
                                  {"cubic", "ns3::TcpCubic"},
                                  {"hybla", "ns3::TcpHybla"}}));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
                       TypeNamed(recovery,
                                 {{"prr", "ns3::TcpPrrRecovery"}, {"classic", "ns3::TcpClassicRecovery"}}));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(sack));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::WindowScaling", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::LimitedTransmit", BooleanValue(limitedTransmit));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(rtoMin));
    Config::SetDefault("ns3::TcpCubic::HyStart", BooleanValue(hystart));
    // Hybla's reference round trip is 25 ms in its paper (Caini, Firrincieli 2004) and 50 ms in ns-3.
    Config::SetDefault("ns3::TcpHybla::RRTT", TimeValue(MilliSeconds(25)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(mss));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(initialWindow));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(delackCount));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(delackTimeout));
    Config::SetDefault("ns3::TcpSocket::DataRetries", UintegerValue(dataRetries));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(buffer));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(buffer));
    // Writing less than a segment at a time would send less than a segment at a time: Nagle is off.
    Config::SetDefault("ns3::BulkSendApplication::SendSize", UintegerValue(mss));
}

} // namespace peer
