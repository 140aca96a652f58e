//! The single flows as a table.

use bentpipe_lab::table::{Cell, Column, Table};

use crate::single_flow::Row;

/// A row for each pair and packet error rate.
pub(crate) fn table(rows: &[Row], title: String) -> Table {
    let megabits = |name: &str, key: &str| Column::new(name, key).shown_in("Mbit/s", 1e6);
    let columns = vec![
        Column::new("sender", "sender"),
        Column::new("PER", "per"),
        megabits("ours", "ours_goodput_bps"),
        megabits("ns-3", "ns3_goodput_bps"),
        Column::new("intervals", "overlap"),
        Column::new("ours / ns-3, same losses", "ratio_with_same_losses"),
        Column::new("sent again: ours", "ours_retransmissions"),
        Column::new("ns-3", "ns3_retransmissions"),
        Column::new("timeouts: ours", "ours_timeouts"),
        Column::new("ns-3", "ns3_timeouts"),
    ];
    let mut table = Table::new(title, columns);
    rows.iter().for_each(|row| table.push(cells(row)));
    table
}

fn cells(row: &Row) -> Vec<Cell> {
    let Row { ours, ns3, .. } = row;
    let intervals = match row.overlap {
        Some(true) => Cell::text("overlap"),
        Some(false) => Cell::text("apart"),
        None => Cell::text(""),
    };
    vec![
        Cell::text(row.pair),
        Cell::text(if row.per > 0.0 { format!("{:e}", row.per) } else { "0".into() }),
        Cell::interval(Some(ours.goodput_bps), 3),
        Cell::interval(Some(ns3.goodput_bps), 3),
        intervals,
        Cell::interval(row.ratio_with_same_losses, 3),
        Cell::interval(Some(ours.retransmissions), 1),
        Cell::interval(Some(ns3.retransmissions), 1),
        Cell::interval(Some(ours.timeouts), 1),
        Cell::interval(Some(ns3.timeouts), 1),
    ]
}
