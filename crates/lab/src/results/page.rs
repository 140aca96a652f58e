//! Results for people: on a terminal, and as a page of Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use bentpipe_table::escape_markdown as escaped;

use super::{Outcome, Part, Results, Verdict};

/// Longer tables are for programs; for people, the text refers to the CSV file.
const MOST_ROWS: usize = 40;

/// Title, tables and verdicts for a terminal.
pub(super) fn text(results: &Results) -> String {
    let Results { name, title, source, world, seeds, .. } = results;
    let busy = results.busy.map(|busy| format!("; {busy}")).unwrap_or_default();
    let mut text = format!("{name}: {title}\n{source}; {world}, {seeds}{busy}\n");
    for table in &results.tables {
        let Part { content, .. } = table;
        text.push('\n');
        match content.rows().len() {
            0..=MOST_ROWS => text += &content.to_text(),
            rows => {
                writeln!(text, "{}: {rows} rows, in the CSV file", content.title).expect("memory takes text")
            }
        }
    }
    if !results.verdicts.is_empty() {
        text.push('\n');
    }
    for verdict in &results.verdicts {
        let Verdict { claim, label, outcome, .. } = verdict;
        let observed = verdict.observation();
        // As wide as the longest outcome; what the data refute stands out.
        let word = match outcome {
            Outcome::Contradicts => outcome.word().to_uppercase(),
            _ => outcome.word().to_owned(),
        };
        let whose = match (&verdict.reference, label) {
            (Some(reference), label) => format!("{}, {reference}", label.word()),
            (None, label) => label.word().to_owned(),
        };
        writeln!(text, "{word:12} {claim} [{whose}]\n{:12} {observed}", "").expect("memory takes text");
    }
    text
}

/// A page with links to the figures and tables in the same folder.
pub(super) fn markdown(results: &Results, tables: &[PathBuf], figures: &[PathBuf]) -> String {
    let (title, source) = (escaped(&results.title), escaped(&results.source));
    let busy = results.busy.map(|busy| format!("; {busy}")).unwrap_or_default();
    let mut page = format!(
        "# {title}\n\nSource: {source}.\n\n`{}`, {}{busy}.\n",
        results.invocation().command(),
        results.seeds
    );
    page += &verdicts(results);
    for (path, figure) in figures.iter().zip(&results.figures) {
        let (title, file) = (escaped(figure.content.title()), file_name(path));
        page += &format!("\n![{title}]({file})\n");
    }
    for (path, table) in tables.iter().zip(&results.tables) {
        let (title, file) = (escaped(&table.content.title), file_name(path));
        let rows = match table.content.rows().len() {
            0..=MOST_ROWS => table.content.to_markdown(),
            rows => format!("{rows} rows.\n"),
        };
        page += &format!("\n## {title}\n\n{rows}\n[{file}]({file})\n");
    }
    page
}

fn verdicts(results: &Results) -> String {
    if results.verdicts.is_empty() {
        return String::new();
    }
    let mut rows = "\n| claim | whose | outcome | observed |\n|---|---|---|---|\n".to_owned();
    for verdict in &results.verdicts {
        let Verdict { claim, label, outcome, .. } = verdict;
        let word = match outcome {
            Outcome::Contradicts => format!("**{}**", outcome.word()),
            _ => outcome.word().to_owned(),
        };
        let whose = match &verdict.reference {
            Some(reference) => format!("{}: {}", label.word(), escaped(reference)),
            None => label.word().to_owned(),
        };
        rows += &format!("| {} | {whose} | {word} | {} |\n", escaped(claim), escaped(&verdict.observation()));
    }
    rows
}

/// Results name their files in letters that every link takes.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;
    use crate::processors::Busy;

    #[test]
    fn how_busy_the_machine_was_is_said_wherever_results_are() {
        let results = Results { busy: Some(Busy { mean: 0.58, most: 0.9 }), ..results() };
        let told =
            "; processors busy for 58% of the time, 90% in the busiest ten seconds: packets may have waited";
        assert!(text(&results).contains(told) && markdown(&results, &[], &[]).contains(told));
    }

    #[test]
    fn the_terminal_sees_tables_and_the_outcome_of_each_claim() {
        let expected = "\
psats09-fig4: Over the railway
Caini, Firrincieli, Lacamera, PSATS 2009, figure 4; sim, 3 seeds from 1

Goodput by way
way     goodput (Mbit/s)
PEPsal       4.20 ± 0.25

agrees       Hybla is far above Reno: 3 times or more [expected, figure 4]
             13.6 times [13.4, 13.7] at 60 km/h (90% intervals, 3 seeds; detects 2%)
undecided    PEPsal is within 5% of Hybla [stated, figure 4]
             1.00 times [0.92, 1.08] (90% intervals, 3 seeds; detects 14.2%)
CONTRADICTED 33 tunnels [ours]
             32 tunnels (without randomness)
";
        assert_eq!(text(&results()), expected);
    }

    #[test]
    fn the_page_has_title_source_seeds_verdicts_figure_and_table() {
        let expected = "\
# Over the railway

Source: Caini, Firrincieli, Lacamera, PSATS 2009, figure 4.

`bentpipe lab run psats09-fig4 --on sim --seed 1 --seeds 3 --max-seeds 12`, 3 seeds from 1.

| claim | whose | outcome | observed |
|---|---|---|---|
| Hybla is far above Reno: 3 times or more | expected: figure 4 | agrees | 13.6 times \\[13.4, 13.7\\] at 60 km/h (90% intervals, 3 seeds; detects 2%) |
| PEPsal is within 5% of Hybla | stated: figure 4 | undecided | 1.00 times \\[0.92, 1.08\\] (90% intervals, 3 seeds; detects 14.2%) |
| 33 tunnels | ours | **contradicted** | 32 tunnels (without randomness) |

![Goodput](a.svg)

## Goodput by way

| way | goodput (Mbit/s) |
|---|---:|
| PEPsal | 4.20 ± 0.25 |

[a.csv](a.csv)
";
        assert_eq!(markdown(&results(), &["out/a.csv".into()], &["out/a.svg".into()]), expected);
    }
}
