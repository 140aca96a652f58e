// Watches one sending socket from outside: what it sends again, when its timer expired, how its window moves.
#pragma once

#include "setup.h"

#include <fstream>

namespace peer
{

/// Counts a sender's retransmissions and timeouts, and writes its window to a CSV file when asked.
class SenderWatch
{
  public:
    /// Starts to watch. With a `csv` that is not empty, writes the columns time_s, cwnd_bytes, ssthresh_bytes,
    /// in_flight (bytes) and rtt_s (ns-3's smoothed estimate) there, a row for each instant at which one changed.
    void Attach(ns3::Ptr<ns3::Socket> socket, const std::string& csv);

    /// Segments with data that began below the highest byte sent before them.
    uint64_t Retransmissions() const
    {
        return m_retransmissions;
    }

    /// Expiries of the retransmission timer while data was in flight.
    uint64_t Timeouts() const
    {
        return m_timeouts;
    }

    /// Writes what has not been written yet.
    void Finish();

  private:
    using Segment = ns3::Ptr<const ns3::Packet>;
    using Tcp = ns3::Ptr<const ns3::TcpSocketBase>;

    void Sent(Segment segment, const ns3::TcpHeader& header, Tcp);
    void Received(Segment, const ns3::TcpHeader&, Tcp);
    void CwndChanged(uint32_t, uint32_t now);
    void SsthreshChanged(uint32_t, uint32_t now);
    void InFlightChanged(uint32_t, uint32_t now);
    void RttChanged(ns3::Time, ns3::Time now);

    /// The values at the end of one instant.
    struct Row
    {
        ns3::Time time;
        uint32_t cwnd = 0;
        uint32_t ssthresh = 0;
        uint32_t inFlight = 0;
        ns3::Time rtt;
    };

    Row& RowNow();
    void Write(const Row& row);

    uint64_t m_retransmissions = 0;
    uint64_t m_timeouts = 0;
    ns3::SequenceNumber32 m_highest{0};
    ns3::Time m_lastReceived{-1};
    ns3::Time m_lastTimeout{-1};
    std::ofstream m_csv;
    Row m_row;
};

inline void
SenderWatch::Attach(ns3::Ptr<ns3::Socket> socket, const std::string& csv)
{
    using ns3::MakeCallback;
    socket->TraceConnectWithoutContext("Tx", MakeCallback(&SenderWatch::Sent, this));
    socket->TraceConnectWithoutContext("Rx", MakeCallback(&SenderWatch::Received, this));
    if (csv.empty())
    {
        return;
    }
    m_csv.open(csv);
    if (!m_csv)
    {
        Refuse("The trace cannot be written to " + csv);
    }
    m_csv.precision(9);
    m_csv << "time_s,cwnd_bytes,ssthresh_bytes,in_flight,rtt_s\n";
    const auto trace = [&socket, this](const char* source, auto changed) {
        socket->TraceConnectWithoutContext(source, MakeCallback(changed, this));
    };
    trace("CongestionWindow", &SenderWatch::CwndChanged);
    trace("SlowStartThreshold", &SenderWatch::SsthreshChanged);
    trace("BytesInFlight", &SenderWatch::InFlightChanged);
    trace("RTT", &SenderWatch::RttChanged);
}

inline void
SenderWatch::Finish()
{
    if (m_csv.is_open())
    {
        Write(m_row);
        m_csv.close();
    }
}

inline void
SenderWatch::Sent(Segment segment, const ns3::TcpHeader& header, Tcp)
{
    if (segment->GetSize() == 0)
    {
        return;
    }
    const auto first = header.GetSequenceNumber();
    if (first < m_highest)
    {
        ++m_retransmissions;
        // ns-3 has no trace of the timer's expiry. Only ACKs and the timer make a sender send again: what it
        // retransmits at an instant at which nothing arrived is the timer's.
        const auto now = ns3::Simulator::Now();
        if (now != m_lastReceived && now != m_lastTimeout)
        {
            ++m_timeouts;
            m_lastTimeout = now;
        }
    }
    m_highest = std::max(m_highest, first + segment->GetSize());
}

inline void
SenderWatch::Received(Segment, const ns3::TcpHeader&, Tcp)
{
    m_lastReceived = ns3::Simulator::Now();
}

inline void
SenderWatch::CwndChanged(uint32_t, uint32_t now)
{
    RowNow().cwnd = now;
}

inline void
SenderWatch::SsthreshChanged(uint32_t, uint32_t now)
{
    RowNow().ssthresh = now;
}

inline void
SenderWatch::InFlightChanged(uint32_t, uint32_t now)
{
    RowNow().inFlight = now;
}

inline void
SenderWatch::RttChanged(ns3::Time, ns3::Time now)
{
    RowNow().rtt = now;
}

inline SenderWatch::Row&
SenderWatch::RowNow()
{
    const auto now = ns3::Simulator::Now();
    if (now != m_row.time)
    {
        Write(m_row);
        m_row.time = now;
    }
    return m_row;
}

inline void
SenderWatch::Write(const Row& row)
{
    m_csv << row.time.GetSeconds() << ',' << row.cwnd << ',' << row.ssthresh << ',' << row.inFlight << ','
          << row.rtt.GetSeconds() << '\n';
}

} // namespace peer
