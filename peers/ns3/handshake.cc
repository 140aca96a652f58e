// Does a TCP connection come about in ns-3 over a link of D seconds one way, and does 1 kB get through?
//
//     handshake --first=20 --last=50
//
// prints a JSON list with one object for each whole second of delay.
#include "setup.h"

using namespace ns3;

namespace
{

struct Options
{
    uint32_t first = 1;
    uint32_t last = 60;
    uint32_t bytes = 1000;
    Time limit = Seconds(3600);
    peer::TcpOptions tcp;
};

Options
Parse(int argc, char** argv)
{
    Options options;
    options.tcp.buffer = 1'000'000;
    CommandLine command;
    command.Usage("Where TCP's handshake reaches, in one-way delay.");
    command.AddValue("first", "smallest one-way delay, whole seconds", options.first);
    command.AddValue("last", "largest one-way delay, whole seconds", options.last);
    command.AddValue("bytes", "that must get through", options.bytes);
    command.AddValue("limit", "virtual time at which to give up", options.limit);
    options.tcp.AddTo(command);
    command.Parse(argc, argv);
    if (options.first == 0 || options.last < options.first || options.bytes == 0)
    {
        peer::Refuse("--first must be at least 1, --last not below it, and --bytes at least 1");
    }
    return options;
}

/// What became of one connection. Times are virtual, in seconds from the first SYN; none: it never happened.
struct Outcome
{
    uint32_t oneWay = 0;
    std::optional<double> established; ///< the client's view: its connect call succeeded
    std::optional<double> refused;     ///< the client's connect call failed
    std::optional<double> delivered;   ///< the last byte reached the server's application
    uint32_t received = 0;
    uint32_t syns = 0;    ///< that the client sent
    uint32_t synAcks = 0; ///< that the server sent
    uint32_t resets = 0;  ///< that either side sent
};

/// One client, one server, and the link between them.
class Attempt
{
  public:
    Attempt(const Options& options, uint32_t oneWay);

    Outcome Run();

  private:
    void Listen(Ptr<Node> host, const ns3::Address& address);
    void Dial(Ptr<Node> host, const ns3::Address& address);
    void Established(Ptr<Socket> socket);
    void Refused(Ptr<Socket> socket);
    void Delivered(Ptr<Socket> socket);
    void OnWire(Ptr<const Packet> packet);

    const Options m_options;
    Outcome m_outcome;
    Ptr<Socket> m_listener;
    Ptr<Socket> m_client;
};

Attempt::Attempt(const Options& options, uint32_t oneWay)
    : m_options(options)
{
    m_outcome.oneWay = oneWay;
    NodeContainer hosts(2);
    const auto link =
        peer::Connect(hosts.Get(0), hosts.Get(1), DataRate("10Mbps"), Seconds(oneWay), 1'000'000);
    InternetStackHelper().Install(hosts);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    const InetSocketAddress server(peer::Address(link, addresses).GetAddress(1), 5001);
    for (uint32_t end : {0, 1})
    {
        link.Get(end)->TraceConnectWithoutContext("PhyTxBegin", MakeCallback(&Attempt::OnWire, this));
    }
    Listen(hosts.Get(1), server);
    Simulator::ScheduleNow(&Attempt::Dial, this, hosts.Get(0), server);
}

Outcome
Attempt::Run()
{
    Simulator::Stop(m_options.limit);
    Simulator::Run();
    return m_outcome;
}

void
Attempt::Listen(Ptr<Node> host, const ns3::Address& address)
{
    m_listener = Socket::CreateSocket(host, TcpSocketFactory::GetTypeId());
    m_listener->Bind(address);
    m_listener->Listen();
    m_listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const ns3::Address&>(),
                                  Callback<void, Ptr<Socket>, const ns3::Address&>(
                                      [this](Ptr<Socket> accepted, const ns3::Address&) {
                                          accepted->SetRecvCallback(MakeCallback(&Attempt::Delivered, this));
                                      }));
}

void
Attempt::Dial(Ptr<Node> host, const ns3::Address& address)
{
    m_client = Socket::CreateSocket(host, TcpSocketFactory::GetTypeId());
    m_client->SetConnectCallback(MakeCallback(&Attempt::Established, this), MakeCallback(&Attempt::Refused, this));
    m_client->Connect(address);
}

void
Attempt::Established(Ptr<Socket> socket)
{
    m_outcome.established = Simulator::Now().GetSeconds();
    socket->Send(Create<Packet>(m_options.bytes));
}

void
Attempt::Refused(Ptr<Socket>)
{
    m_outcome.refused = Simulator::Now().GetSeconds();
}

void
Attempt::Delivered(Ptr<Socket> socket)
{
    while (auto packet = socket->Recv())
    {
        if (packet->GetSize() == 0)
        {
            break;
        }
        m_outcome.received += packet->GetSize();
    }
    if (m_outcome.received == m_options.bytes)
    {
        m_outcome.delivered = Simulator::Now().GetSeconds();
        Simulator::Stop();
    }
}

/// Counts the segments that open or reset a connection, as they leave either side.
void
Attempt::OnWire(Ptr<const Packet> packet)
{
    auto copy = packet->Copy();
    PppHeader ppp;
    Ipv4Header ip;
    TcpHeader tcp;
    copy->RemoveHeader(ppp);
    copy->RemoveHeader(ip);
    copy->RemoveHeader(tcp);
    const auto flags = tcp.GetFlags();
    const bool syn = flags & TcpHeader::SYN;
    const bool ack = flags & TcpHeader::ACK;
    m_outcome.syns += syn && !ack;
    m_outcome.synAcks += syn && ack;
    m_outcome.resets += (flags & TcpHeader::RST) != 0;
}

void
Print(std::ostream& out, const Outcome& outcome)
{
    peer::Json json(out);
    json.Member("one_way_s", outcome.oneWay)
        .Member("established", outcome.established.has_value())
        .Member("delivered", outcome.delivered.has_value())
        .Member("established_s", outcome.established)
        .Member("refused_s", outcome.refused)
        .Member("delivered_s", outcome.delivered)
        .Member("syns", outcome.syns)
        .Member("syn_acks", outcome.synAcks)
        .Member("resets", outcome.resets);
    json.End();
}

} // namespace

int
main(int argc, char** argv)
{
    const Options options = Parse(argc, argv);
    options.tcp.Apply();
    const char* separator = "[";
    for (uint32_t oneWay = options.first; oneWay <= options.last; ++oneWay)
    {
        const Outcome outcome = Attempt(options, oneWay).Run();
        Simulator::Destroy();
        std::cout << separator;
        Print(std::cout, outcome);
        separator = ",\n ";
    }
    std::cout << "]" << std::endl;
    return 0;
}
