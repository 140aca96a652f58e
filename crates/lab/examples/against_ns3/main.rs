//! scratch
mod ns3;
mod scene;
mod single_flow;
mod trace;
use single_flow::{Losses, compare, table};
fn main() {
    let arg: Vec<String> = std::env::args().collect();
    if arg[1] == "trace" {
        let pair = &single_flow::PAIRS[arg[2].parse::<usize>().unwrap()];
        let per: f64 = arg[3].parse().unwrap();
        let seed: u64 = arg[4].parse().unwrap();
        trace::ours(pair, per, seed, "/tmp/ours.csv".as_ref()).unwrap();
        println!(
            "{} --trace=/tmp/ns3.csv --drop={}",
            pair.ns3.join(" "),
            single_flow::lost_packets(per, seed).join(",")
        );
        return;
    }
    let seeds: u64 = arg[1].parse().unwrap();
    let ns3 = ns3::Ns3::new("target/ns3");
    let rows = compare(&ns3, seeds, Losses::Data).unwrap();
    println!("{}", table(&rows, "PER on data").to_text());
}
