// Six endless TCP flows over one bottleneck, in ns-3: three with a satellite's round trip, three with a shorter.
//
//     dumbbell --queue=750000
//
// prints one JSON object on one line: each flow's goodput, the events, and the real time that the run took.
#include "setup.h"

#include <memory>
#include <vector>

using namespace ns3;

namespace
{

/// One way over the bottleneck, and one way over every receiver's access link.
const Time kSharedDelay = MicroSeconds(2500);

struct Options
{
    DataRate rate{"10Mbps"};
    Time longRtt = MilliSeconds(600);
    Time shortRtt = MilliSeconds(25);
    uint32_t pairs = 3;
    uint32_t queue = 0;
    Time duration = Seconds(100);
    peer::TcpOptions tcp;
};

Options
Parse(int argc, char** argv)
{
    Options options;
    CommandLine command;
    command.Usage("Endless TCP flows with a long and a short round trip over one bottleneck.");
    command.AddValue("rate", "of the bottleneck, like 10Mbps", options.rate);
    command.AddValue("long-rtt", "of the first flows, like 600ms", options.longRtt);
    command.AddValue("short-rtt", "of the others, like 25ms", options.shortRtt);
    command.AddValue("pairs", "flows of either kind", options.pairs);
    command.AddValue("queue", "bytes before the bottleneck; 0 is one bandwidth-delay product of the long RTT",
                     options.queue);
    command.AddValue("duration", "virtual time, like 100s", options.duration);
    options.tcp.AddTo(command);
    command.Parse(argc, argv);
    if (options.shortRtt <= kSharedDelay * 4 || options.longRtt < options.shortRtt)
    {
        peer::Refuse("--short-rtt must be above 10ms, and --long-rtt not below it");
    }
    if (options.pairs == 0 || options.pairs > 100)
    {
        peer::Refuse("--pairs must lie between 1 and 100, not at " + std::to_string(options.pairs));
    }
    const uint32_t bdp = peer::BandwidthDelayProduct(options.rate, options.longRtt);
    options.queue = options.queue ? options.queue : bdp;
    options.tcp.buffer = options.tcp.buffer ? options.tcp.buffer : peer::BufferFor(bdp, options.queue);
    return options;
}

struct Flow
{
    Time rtt;
    uint64_t received = 0;
};

/// The network: senders, a router, the bottleneck, a router, receivers.
class Dumbbell
{
  public:
    explicit Dumbbell(const Options& options);

    void Run();
    void Print() const;

  private:
    void AddFlow(Time rtt);
    Ipv4Address AddHost(Ptr<Node> host, Ptr<Node> router, Time delay);
    void Write(std::ostream& out, const Flow& flow) const;

    const Options m_options;
    NodeContainer m_routers;
    Ipv4AddressHelper m_addresses{"10.0.0.0", "255.255.255.0"};
    std::vector<std::unique_ptr<Flow>> m_flows;
    uint64_t m_drops = 0;
    peer::Cost m_cost;
};

Dumbbell::Dumbbell(const Options& options)
    : m_options(options)
{
    options.tcp.Apply();
    m_routers.Create(2);
    InternetStackHelper().Install(m_routers);
    const auto bottleneck =
        peer::Connect(m_routers.Get(0), m_routers.Get(1), options.rate, kSharedDelay, options.queue);
    peer::Address(bottleneck, m_addresses);
    peer::QueueOf(bottleneck, 0)->TraceConnectWithoutContext(
        "Drop", Callback<void, Ptr<const Packet>>([this](Ptr<const Packet>) { ++m_drops; }));
    for (const Time& rtt : {options.longRtt, options.shortRtt})
    {
        for (uint32_t i = 0; i < options.pairs; ++i)
        {
            AddFlow(rtt);
        }
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
}

void
Dumbbell::AddFlow(Time rtt)
{
    Flow& flow = *m_flows.emplace_back(std::make_unique<Flow>(Flow{rtt}));
    NodeContainer hosts(2);
    InternetStackHelper().Install(hosts);
    AddHost(hosts.Get(0), m_routers.Get(0), rtt / 2 - kSharedDelay * 2);
    const InetSocketAddress destination(AddHost(hosts.Get(1), m_routers.Get(1), kSharedDelay), 5001);

    PacketSinkHelper("ns3::TcpSocketFactory", destination)
        .Install(hosts.Get(1))
        .Get(0)
        ->TraceConnectWithoutContext("Rx",
                                     Callback<void, Ptr<const Packet>, const ns3::Address&>(
                                         [&flow](Ptr<const Packet> packet, const ns3::Address&) {
                                             flow.received += packet->GetSize();
                                         }));
    BulkSendHelper("ns3::TcpSocketFactory", destination).Install(hosts.Get(0));
}

/// Connects a host to its router by a link that is never the bottleneck, and says the host's address.
Ipv4Address
Dumbbell::AddHost(Ptr<Node> host, Ptr<Node> router, Time delay)
{
    const auto link = peer::Connect(host, router, DataRate("1Gbps"), delay, 100'000'000);
    return peer::Address(link, m_addresses).GetAddress(0);
}

void
Dumbbell::Run()
{
    Simulator::Stop(m_options.duration);
    m_cost = peer::RunTimed();
}

void
Dumbbell::Print() const
{
    peer::Json json(std::cout);
    json.Member("simulator", std::string("ns-" NS3_VERSION))
        .Member("congestion", m_options.tcp.congestion)
        .Member("recovery", m_options.tcp.recovery)
        .Member("sack", m_options.tcp.sack)
        .Member("seconds", m_options.duration.GetSeconds())
        .Member("queue_bytes", m_options.queue)
        .Member("queue_drops", m_drops)
        .Member("events", Simulator::GetEventCount())
        .Member("wall_s", m_cost.wall)
        .Member("cpu_s", m_cost.cpu)
        .Nested("flows", [this](std::ostream& out) {
            for (const auto& flow : m_flows)
            {
                out << (&flow == &m_flows.front() ? "[" : ", ");
                Write(out, *flow);
            }
            out << "]";
        });
    json.End();
    std::cout << std::endl;
}

void
Dumbbell::Write(std::ostream& out, const Flow& flow) const
{
    peer::Json json(out);
    json.Member("rtt_s", flow.rtt.GetSeconds())
        .Member("bytes", flow.received)
        .Member("goodput_bps", flow.received * 8 / m_options.duration.GetSeconds());
    json.End();
}

} // namespace

int
main(int argc, char** argv)
{
    Dumbbell dumbbell(Parse(argc, argv));
    dumbbell.Run();
    dumbbell.Print();
    Simulator::Destroy();
    return 0;
}
