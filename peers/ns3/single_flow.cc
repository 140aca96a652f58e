// One TCP flow of a given length over one link, in ns-3: rate, delay, a drop-tail queue, random packet errors.
//
//     single_flow --congestion=cubic --per=1e-3 --seed=7
//
// prints one JSON object on one line; exit code 0 only when every byte arrived.
#include "sender_watch.h"

#include <list>
#include <sstream>

using namespace ns3;

namespace
{

struct Options
{
    DataRate rate{"10Mbps"};
    Time delay = MilliSeconds(300);
    double per = 0;
    double ackPer = 0;
    std::string drop;
    uint32_t queue = 0;
    uint64_t bytes = 10'000'000;
    uint32_t seed = 1;
    Time limit = Seconds(36'000);
    std::string trace;
    peer::TcpOptions tcp;
};

Options
Parse(int argc, char** argv)
{
    Options options;
    CommandLine command;
    command.Usage("One TCP flow over one link.");
    command.AddValue("rate", "of the link, both ways, like 10Mbps", options.rate);
    command.AddValue("delay", "one way, like 300ms", options.delay);
    command.AddValue("per", "packet error rate towards the receiver, 0 to 1", options.per);
    command.AddValue("ack-per", "packet error rate towards the sender, 0 to 1", options.ackPer);
    command.AddValue("drop", "arrivals at the receiver that are lost, like 40,77 (the SYN is 0)", options.drop);
    command.AddValue("queue", "bytes; 0 is one bandwidth-delay product", options.queue);
    command.AddValue("bytes", "length of the flow", options.bytes);
    command.AddValue("seed", "1 or more; the same seed repeats the run", options.seed);
    command.AddValue("limit", "virtual time at which to give up", options.limit);
    command.AddValue("trace", "CSV file for cwnd, ssthresh, in flight and RTT", options.trace);
    options.tcp.AddTo(command);
    command.Parse(argc, argv);
    for (double rate : {options.per, options.ackPer})
    {
        if (!(rate >= 0 && rate <= 1))
        {
            peer::Refuse("A packet error rate lies between 0 and 1, not at " + std::to_string(rate));
        }
    }
    if (!options.drop.empty() && options.per > 0)
    {
        peer::Refuse("--drop and --per both say what is lost towards the receiver: give one of them");
    }
    if (options.rate == DataRate(0) || !options.delay.IsStrictlyPositive())
    {
        peer::Refuse("--rate and --delay must be above 0");
    }
    if (options.bytes == 0 || options.seed == 0)
    {
        peer::Refuse("--bytes and --seed must be at least 1");
    }
    const uint32_t bdp = peer::BandwidthDelayProduct(options.rate, options.delay * 2);
    options.queue = options.queue ? options.queue : bdp;
    options.tcp.buffer = options.tcp.buffer ? options.tcp.buffer : peer::BufferFor(bdp, options.queue);
    return options;
}

/// The numbers of a list like `40,77`.
std::list<uint32_t>
ParseNumbers(const std::string& list)
{
    std::list<uint32_t> numbers;
    std::istringstream words(list);
    for (std::string word; std::getline(words, word, ',');)
    {
        if (word.empty() || word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos)
        {
            peer::Refuse("--drop takes numbers with commas between them, not '" + list + "'");
        }
        numbers.push_back(static_cast<uint32_t>(std::stoul(word)));
    }
    return numbers;
}

/// Loses the packets that arrive at `device` in these places, counted from 0.
void
LosePackets(Ptr<NetDevice> device, const std::list<uint32_t>& places)
{
    auto errors = CreateObject<ReceiveListErrorModel>();
    errors->SetList(places);
    device->SetAttribute("ReceiveErrorModel", PointerValue(errors));
}

/// Loses each packet that arrives at `device` with probability `per`, independently.
void
LosePackets(Ptr<NetDevice> device, double per, int64_t stream)
{
    auto errors = CreateObject<RateErrorModel>();
    errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
    errors->SetRate(per);
    errors->AssignStreams(stream);
    device->SetAttribute("ReceiveErrorModel", PointerValue(errors));
}

/// Two hosts, the link between them, a sender and a receiver; and what is measured there.
class SingleFlow
{
  public:
    explicit SingleFlow(const Options& options);

    void Run();
    void Print() const;

    bool Complete() const
    {
        return m_received == m_options.bytes;
    }

  private:
    void BuildLink();
    void BuildFlow();
    void QueueChanged(uint32_t, uint32_t now);
    void Received(Ptr<const Packet> packet, const ns3::Address&);

    const Options m_options;
    NodeContainer m_hosts; ///< the sender, then the receiver
    NetDeviceContainer m_devices;
    Ipv4Address m_receiver;
    peer::SenderWatch m_sender;
    uint64_t m_received = 0;
    Time m_lastByte;
    uint64_t m_queueDrops = 0;
    uint64_t m_dataErrors = 0;
    uint64_t m_ackErrors = 0;
    uint32_t m_queuePeak = 0;
    peer::Cost m_cost;
};

SingleFlow::SingleFlow(const Options& options)
    : m_options(options)
{
    RngSeedManager::SetSeed(1);
    RngSeedManager::SetRun(options.seed);
    options.tcp.Apply();
    BuildLink();
    BuildFlow();
}

void
SingleFlow::BuildLink()
{
    m_hosts.Create(2);
    m_devices =
        peer::Connect(m_hosts.Get(0), m_hosts.Get(1), m_options.rate, m_options.delay, m_options.queue);
    if (m_options.drop.empty())
    {
        LosePackets(m_devices.Get(1), m_options.per, 1);
    }
    else
    {
        LosePackets(m_devices.Get(1), ParseNumbers(m_options.drop));
    }
    LosePackets(m_devices.Get(0), m_options.ackPer, 2);
    InternetStackHelper().Install(m_hosts);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    m_receiver = peer::Address(m_devices, addresses).GetAddress(1);

    const auto count = [](uint64_t& drops) {
        return Callback<void, Ptr<const Packet>>([&drops](Ptr<const Packet>) { ++drops; });
    };
    const auto queue = peer::QueueOf(m_devices, 0);
    queue->TraceConnectWithoutContext("Drop", count(m_queueDrops));
    queue->TraceConnectWithoutContext("BytesInQueue", MakeCallback(&SingleFlow::QueueChanged, this));
    m_devices.Get(1)->TraceConnectWithoutContext("PhyRxDrop", count(m_dataErrors));
    m_devices.Get(0)->TraceConnectWithoutContext("PhyRxDrop", count(m_ackErrors));
}

void
SingleFlow::BuildFlow()
{
    const InetSocketAddress destination(m_receiver, 5001);
    PacketSinkHelper receiver("ns3::TcpSocketFactory", destination);
    const auto sink = receiver.Install(m_hosts.Get(1)).Get(0);
    sink->TraceConnectWithoutContext("Rx", MakeCallback(&SingleFlow::Received, this));
    BulkSendHelper sender("ns3::TcpSocketFactory", destination);
    sender.SetAttribute("MaxBytes", UintegerValue(m_options.bytes));
    const auto application = DynamicCast<BulkSendApplication>(sender.Install(m_hosts.Get(0)).Get(0));
    // The application creates its socket when it starts, at 0; only the first SYN has gone by then.
    Simulator::Schedule(NanoSeconds(1),
                        [this, application] { m_sender.Attach(application->GetSocket(), m_options.trace); });
}

void
SingleFlow::QueueChanged(uint32_t, uint32_t now)
{
    m_queuePeak = std::max(m_queuePeak, now);
}

void
SingleFlow::Received(Ptr<const Packet> packet, const ns3::Address&)
{
    m_received += packet->GetSize();
    m_lastByte = Simulator::Now();
    if (Complete())
    {
        Simulator::Stop();
    }
}

void
SingleFlow::Run()
{
    Simulator::Stop(m_options.limit);
    m_cost = peer::RunTimed();
    m_sender.Finish();
}

void
SingleFlow::Print() const
{
    const double seconds = m_lastByte.GetSeconds();
    peer::Json json(std::cout);
    json.Member("simulator", std::string("ns-" NS3_VERSION))
        .Member("congestion", m_options.tcp.congestion)
        .Member("recovery", m_options.tcp.recovery)
        .Member("sack", m_options.tcp.sack)
        .Member("per", m_options.per)
        .Member("ack_per", m_options.ackPer)
        .Member("seed", m_options.seed)
        .Member("complete", Complete())
        .Member("bytes", m_received)
        .Member("seconds", seconds)
        .Member("goodput_bps", seconds > 0 ? m_received * 8 / seconds : 0)
        .Member("retransmissions", m_sender.Retransmissions())
        .Member("timeouts", m_sender.Timeouts())
        .Member("events", Simulator::GetEventCount())
        .Member("wall_s", m_cost.wall)
        .Member("cpu_s", m_cost.cpu)
        .Member("queue_bytes", m_options.queue)
        .Member("queue_peak_bytes", m_queuePeak)
        .Nested("drops", [this](std::ostream& out) {
            peer::Json drops(out);
            drops.Member("queue", m_queueDrops)
                .Member("data_errors", m_dataErrors)
                .Member("ack_errors", m_ackErrors);
            drops.End();
        });
    json.End();
    std::cout << std::endl;
}

} // namespace

int
main(int argc, char** argv)
{
    SingleFlow flow(Parse(argc, argv));
    flow.Run();
    flow.Print();
    const bool complete = flow.Complete();
    Simulator::Destroy();
    return complete ? 0 : 1;
}
