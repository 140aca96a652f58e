//! The report as HTML: one document with its styles and figures in it, and without a script. What a reader
//! wants to see, style rules choose by the classes of claims, experiments and rows of the table of contents.

use std::fmt::{self, Write};

use bentpipe_table::EscapedHtml as Text;
use bentpipe_units::human;

use super::{Attempt, Entry, Ran, Record, Report, State};
use crate::claim::{Outcome, Verdict};
use crate::experiment::{self, Experiment};
use crate::figure;
use crate::results::World;

const STYLE: &str = include_str!("style.css");
const WORLDS: [World; 2] = [World::Sim, World::Kernel];
const OUTCOMES: [Outcome; 3] = [Outcome::Agrees, Outcome::Undecided, Outcome::Contradicts];
/// Longer tables are not printed.
const MOST_PRINTED_ROWS: usize = 40;
/// The class of what did not run to its end.
const UNFINISHED: &str = "unfinished";
/// The class of a claim that agrees in one world and is contradicted in the other.
const DIFFERS: &str = "differs";

/// A claim with its verdicts by world: those of both worlds that have the same sentence are one.
struct Claim<'a> {
    verdicts: [Option<&'a Verdict>; 2],
}

/// Classes of an element, by which it is chosen.
#[derive(Default)]
struct Classes(Vec<&'static str>);

/// The page, made at a time.
pub(super) fn html(report: &Report, at: &str) -> Result<String, String> {
    let mut page = String::new();
    write_page(&mut page, report, at).map_err(|Failed(message)| message)?;
    Ok(page)
}

/// A figure that cannot be drawn.
struct Failed(String);

impl From<fmt::Error> for Failed {
    fn from(_: fmt::Error) -> Self {
        unreachable!("memory takes text")
    }
}

fn write_page(page: &mut String, report: &Report, at: &str) -> Result<(), Failed> {
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>bentpipe: the laboratory's report</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n",
        figure::dark_rules()
    )?;
    write_introduction(page, at)?;
    write_summary(page, report)?;
    write_unreadable(page, report)?;
    write_filter(page)?;
    write_contents(page, report)?;
    page.push_str("<main>\n");
    for entry in &report.entries {
        write_experiment(page, entry)?;
    }
    page.push_str("</main>\n</body>\n</html>\n");
    Ok(())
}

fn write_introduction(page: &mut String, at: &str) -> fmt::Result {
    write!(
        page,
        "<header>\n<h1>The laboratory's report</h1>\n<p class=\"faint\">Written {} by bentpipe {}.</p>\n\
         <p>Each claim has a range that stood before the data, and an outcome in each world. It <b>agrees</b> if \
         the confidence intervals lie within the range, is <b>contradicted</b> if one lies outside, and is \
         <b>undecided</b> if the seeds are too few to tell. <b>Stated</b> claims are the publication's, \
         <b>expected</b> ones follow from it, the others are <b>ours</b>. “Detects” is the smallest difference \
         that so many seeds find with a probability of 80%.</p>\n</header>\n",
        date(at),
        env!("CARGO_PKG_VERSION"),
    )
}

/// How many claims have which outcome, by world.
fn write_summary(page: &mut String, report: &Report) -> fmt::Result {
    page.push_str("<div class=\"scroll\"><table class=\"summary\">\n<thead><tr><th></th>");
    for world in WORLDS {
        write!(page, "<th class=\"number\">{}</th>", in_world(world))?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let ran = |world| report.entries.iter().map(move |entry| entry.ran(world));
    for outcome in OUTCOMES {
        let words =
            format!("claims {}", if outcome == Outcome::Agrees { "that agree" } else { outcome.word() });
        let counts = WORLDS.map(|world| ran(world).map(|ran| ran.count(outcome)).sum());
        write_summary_row(page, &words, class(outcome), counts)?;
    }
    let finished = WORLDS.map(|world| ran(world).filter(|ran| ran.record.is_some()).count());
    write_summary_row(page, "experiments", "", finished)?;
    let unfinished = WORLDS.map(|world| ran(world).filter(|ran| ran.attempt.is_some()).count());
    write_summary_row(page, "experiments not finished", UNFINISHED, unfinished)?;
    page.push_str("</tbody>\n</table></div>\n");
    let claims: Vec<Claim<'_>> = report.entries.iter().flat_map(Entry::claims).collect();
    let both = claims.iter().filter(|claim| claim.verdicts.iter().all(Option::is_some)).count();
    let differ = claims.iter().filter(|claim| claim.differs()).count();
    if both > 0 {
        let both = human::count(both, "claim");
        writeln!(
            page,
            "<p>Of {both} in both worlds, {differ} agree in one and are contradicted in the other.</p>"
        )?;
    }
    Ok(())
}

fn write_summary_row(page: &mut String, words: &str, class: &str, counts: [usize; 2]) -> fmt::Result {
    write!(page, "<tr><td>{words}</td>")?;
    for count in counts {
        let mark = if count > 0 && !class.is_empty() { format!(" mark {class}") } else { String::new() };
        write!(page, "<td class=\"number{mark}\">{count}</td>")?;
    }
    page.write_str("</tr>\n")
}

fn write_unreadable(page: &mut String, report: &Report) -> fmt::Result {
    for (path, message) in &report.unreadable {
        let (path, message) = (path.display().to_string(), Text(message));
        writeln!(
            page,
            "<p class=\"attempt {UNFINISHED}\">Left out: cannot read <code>{}</code>: {message}</p>",
            Text(&path)
        )?;
    }
    Ok(())
}

fn write_filter(page: &mut String) -> fmt::Result {
    page.push_str("<fieldset>\n<legend>Show the claims</legend>\n");
    let all = [("all", "all"), ("agrees", "that agree"), ("undecided", "undecided")];
    let more = [("contradicts", "contradicted"), (DIFFERS, "that differ between the worlds")];
    for (key, words) in all.into_iter().chain(more).chain([(UNFINISHED, "not finished")]) {
        let checked = if key == "all" { " checked" } else { "" };
        writeln!(
            page,
            "<label><input type=\"radio\" name=\"only\" id=\"only-{key}\"{checked}> {words}</label>"
        )?;
    }
    page.push_str("</fieldset>\n");
    Ok(())
}

fn write_contents(page: &mut String, report: &Report) -> fmt::Result {
    page.push_str(
        "<nav class=\"scroll\"><table class=\"contents\">\n<thead><tr><th>experiment</th><th>in virtual time</th>\
         <th>on the kernel</th></tr></thead>\n<tbody>\n",
    );
    for entry in &report.entries {
        write!(
            page,
            "<tr class=\"filtered {}\"><td><a href=\"#{name}\">{name}</a><br><span class=\"faint\">{}</span></td>",
            entry.classes(),
            Text(entry.title()),
            name = Text(&entry.name),
        )?;
        for world in WORLDS {
            page.push_str("<td>");
            write_counts(page, entry, world)?;
            page.push_str("</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></nav>\n");
    Ok(())
}

fn write_counts(page: &mut String, entry: &Entry, world: World) -> fmt::Result {
    let ran = entry.ran(world);
    for outcome in OUTCOMES {
        let count = ran.count(outcome);
        if count > 0 {
            let (class, sign, word) = (class(outcome), sign(outcome), outcome.word());
            write!(page, "<span class=\"mark {class}\" title=\"{word}\">{sign} {count}</span> ")?;
        }
    }
    match (&ran.attempt, &ran.record) {
        (Some(_), _) => write!(page, "<span class=\"mark {UNFINISHED}\">not finished</span>"),
        (None, Some(record)) if record.results.verdicts.is_empty() => page.write_str("no claims"),
        (None, Some(_)) => Ok(()),
        (None, None) => write!(page, "<span class=\"faint\">{}</span>", entry.why_absent(world)),
    }
}

fn write_experiment(page: &mut String, entry: &Entry) -> Result<(), Failed> {
    let name = Text(&entry.name);
    writeln!(page, "<section class=\"experiment filtered {}\" id=\"{name}\">", entry.classes())?;
    writeln!(page, "<h2>{}</h2>\n<p class=\"source\"><code>{name}</code>", Text(entry.title()))?;
    if let Some(source) = entry.source() {
        writeln!(page, "<span class=\"faint\">Source: {}</span>", Text(source))?;
    }
    page.push_str("</p>\n");
    for world in WORLDS {
        write_attempt(page, entry.ran(world), world)?;
    }
    let claims = entry.claims();
    if !claims.is_empty() {
        page.push_str("<ol class=\"claims\">\n");
        for claim in &claims {
            write_claim(page, entry, claim)?;
        }
        page.push_str("</ol>\n");
    }
    let records = || WORLDS.into_iter().filter_map(|world| Some((world, entry.ran(world).record.as_ref()?)));
    for (world, record) in records() {
        write_figures(page, record, world)?;
    }
    for (world, record) in records() {
        write_tables(page, record, world)?;
    }
    if records().next().is_some() {
        page.push_str("<dl class=\"runs\">\n");
        for (world, record) in records() {
            write_run(page, record, world)?;
        }
        page.push_str("</dl>\n");
    }
    page.push_str("</section>\n");
    Ok(())
}

fn write_attempt(page: &mut String, ran: &Ran, world: World) -> fmt::Result {
    let Some(Attempt { invocation, at, state }) = &ran.attempt else { return Ok(()) };
    write!(page, "<p class=\"attempt {UNFINISHED}\"><b>{}</b> ", capital(in_world(world)))?;
    match state {
        State::Waiting => write!(page, "it has not begun ({}).", date(at))?,
        State::Running => write!(page, "it has not finished: it began {}.", date(at))?,
        State::Failed(message) => write!(page, "it failed: {} ({}).", Text(message), date(at))?,
    }
    if ran.record.is_some() {
        page.push_str(" What is below is of an earlier run.");
    }
    writeln!(page, "<br><code>{}</code></p>", Text(&invocation.command()))
}

fn write_claim(page: &mut String, entry: &Entry, claim: &Claim<'_>) -> fmt::Result {
    let verdict = claim.any();
    write!(
        page,
        "<li class=\"claim filtered {}\">\n<p class=\"sentence\">{}</p>\n<p class=\"meta\">{}",
        claim.classes(entry),
        Text(&verdict.claim),
        verdict.label.word()
    )?;
    if let Some(reference) = &verdict.reference {
        write!(page, ", {}", Text(reference))?;
    }
    match claim.verdicts.map(|verdict| verdict.map(|verdict| &verdict.range)) {
        [Some(sim), Some(kernel)] if sim != kernel => {
            write!(page, "; range: {} in virtual time, {} on the kernel", Text(sim), Text(kernel))?;
        }
        _ => write!(page, "; range: {}", Text(&verdict.range))?,
    }
    page.push_str("</p>\n<div class=\"worlds\">\n");
    for (world, verdict) in WORLDS.into_iter().zip(claim.verdicts) {
        write_verdict(page, entry, world, verdict)?;
    }
    page.push_str("</div>\n</li>\n");
    Ok(())
}

fn write_verdict(page: &mut String, entry: &Entry, world: World, verdict: Option<&Verdict>) -> fmt::Result {
    let Some(verdict) = verdict else {
        let why = entry.why_absent(world);
        return writeln!(
            page,
            "<div class=\"world\"><p class=\"faint\">{}: {why}</p></div>",
            in_world(world)
        );
    };
    let (class, sign, word) = (class(verdict.outcome), sign(verdict.outcome), verdict.outcome.word());
    write!(
        page,
        "<div class=\"world {class}\"><p><span class=\"mark\">{sign} {word}</span> {}</p>\n<p>{}</p>",
        in_world(world),
        Text(&verdict.observed)
    )?;
    if let Some(certainty) = &verdict.certainty {
        write!(page, "\n<p class=\"faint\">{}</p>", Text(certainty))?;
    }
    page.push_str("</div>\n");
    Ok(())
}

fn write_figures(page: &mut String, record: &Record, world: World) -> Result<(), Failed> {
    for part in &record.results.figures {
        let svg = part.content.to_html().map_err(Failed)?;
        // The title is in the figure.
        writeln!(
            page,
            "<figure><div class=\"scroll\">\n{svg}</div><figcaption>{}</figcaption></figure>",
            capital(in_world(world))
        )?;
    }
    Ok(())
}

fn write_tables(page: &mut String, record: &Record, world: World) -> fmt::Result {
    for part in &record.results.tables {
        let rows = part.content.rows().len();
        let long = if rows > MOST_PRINTED_ROWS { " class=\"long\"" } else { "" };
        writeln!(
            page,
            "<details{long}><summary>{} <span class=\"faint\">{}, {}</span></summary>\n<div class=\"scroll\">\n\
             {}</div></details>",
            Text(&part.content.title),
            in_world(world),
            human::count(rows, "row"),
            part.content.to_html()
        )?;
    }
    Ok(())
}

fn write_run(page: &mut String, Record { results, origin }: &Record, world: World) -> fmt::Result {
    let took = match origin.seconds {
        seconds if seconds < 60.0 => human::seconds(seconds),
        seconds => human::span(seconds),
    };
    let busy = results.busy.map(|busy| format!("; {busy}")).unwrap_or_default();
    let quick = if results.quick { "; with shortened scenarios: a look, not a result" } else { "" };
    writeln!(
        page,
        "<dt>{}</dt>\n<dd>{}{quick}; began {}, took {took}{busy}; {}</dd>\n<dd><code>{}</code></dd>",
        capital(in_world(world)),
        results.seeds,
        date(&origin.began),
        Text(&origin.machine.describe()),
        Text(&results.invocation().command())
    )
}

impl Entry {
    fn known(&self) -> Option<&'static Experiment> {
        experiment::find(&self.name).ok()
    }

    fn any_record(&self) -> Option<&Record> {
        self.sim.record.as_ref().or(self.kernel.record.as_ref())
    }

    fn title(&self) -> &str {
        let known = || self.known().map_or(self.name.as_str(), |known| known.title);
        self.any_record().map_or_else(known, |record| &record.results.title)
    }

    fn source(&self) -> Option<&str> {
        let known = || self.known().map(|known| known.source);
        self.any_record().map(|record| record.results.source.as_str()).or_else(known)
    }

    /// The claims of virtual time in their order, then those that only the kernel has.
    fn claims(&self) -> Vec<Claim<'_>> {
        let verdicts = |world| {
            self.ran(world).record.iter().flat_map(|record| &record.results.verdicts).collect::<Vec<_>>()
        };
        let mut on_kernel: Vec<Option<&Verdict>> = verdicts(World::Kernel).into_iter().map(Some).collect();
        let mut claims = Vec::new();
        for sim in verdicts(World::Sim) {
            let same = |other: &&mut Option<&Verdict>| other.is_some_and(|other| other.claim == sim.claim);
            let kernel = on_kernel.iter_mut().find(same).and_then(Option::take);
            claims.push(Claim { verdicts: [Some(sim), kernel] });
        }
        let rest = on_kernel.into_iter().filter(Option::is_some);
        claims.extend(rest.map(|kernel| Claim { verdicts: [None, kernel] }));
        claims
    }

    /// Why a world has no verdict.
    fn why_absent(&self, world: World) -> &'static str {
        let ran = self.ran(world);
        match (&ran.record, &ran.attempt, self.known()) {
            (Some(_), _, _) => "not a claim here",
            (None, Some(_), _) => "not finished",
            (None, None, Some(known)) if !known.worlds().contains(&world) => match world {
                World::Sim => "kernel only",
                World::Kernel => "virtual time only",
            },
            (None, None, _) => "not run here",
        }
    }

    fn classes(&self) -> Classes {
        let mut classes = Classes::default();
        let unfinished = WORLDS.into_iter().any(|world| self.ran(world).attempt.is_some());
        classes.add_if(unfinished, UNFINISHED);
        for claim in self.claims() {
            claim.classes(self).0.into_iter().for_each(|class| classes.add_if(true, class));
        }
        classes
    }
}

impl Ran {
    fn count(&self, outcome: Outcome) -> usize {
        let verdicts = self.record.iter().flat_map(|record| &record.results.verdicts);
        verdicts.filter(|verdict| verdict.outcome == outcome).count()
    }
}

impl<'a> Claim<'a> {
    fn any(&self) -> &'a Verdict {
        self.verdicts.into_iter().flatten().next().expect("one of the worlds has it")
    }

    fn differs(&self) -> bool {
        let outcomes = self.verdicts.map(|verdict| verdict.map(|verdict| verdict.outcome));
        [Outcome::Agrees, Outcome::Contradicts].iter().all(|outcome| outcomes.contains(&Some(*outcome)))
    }

    fn classes(&self, entry: &Entry) -> Classes {
        let mut classes = Classes::default();
        for verdict in self.verdicts.into_iter().flatten() {
            classes.add_if(true, class(verdict.outcome));
        }
        classes.add_if(self.differs(), DIFFERS);
        let unfinished = |world| entry.ran(world).attempt.is_some();
        classes.add_if(WORLDS.into_iter().any(unfinished), UNFINISHED);
        classes
    }
}

impl Classes {
    fn add_if(&mut self, condition: bool, class: &'static str) {
        if condition && !self.0.contains(&class) {
            self.0.push(class);
        }
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Agrees => "agrees",
        Outcome::Undecided => "undecided",
        Outcome::Contradicts => "contradicts",
    }
}

/// For those who do not see colours.
fn sign(outcome: Outcome) -> char {
    match outcome {
        Outcome::Agrees => '✓',
        Outcome::Undecided => '?',
        Outcome::Contradicts => '✗',
    }
}

fn in_world(world: World) -> &'static str {
    match world {
        World::Sim => "in virtual time",
        World::Kernel => "on the kernel",
    }
}

fn capital(words: &str) -> String {
    let (first, rest) = words.split_at(1);
    first.to_uppercase() + rest
}

/// `2026-11-25 08:15 UTC` of a time by RFC 3339.
fn date(rfc3339: &str) -> String {
    let (day, time) = rfc3339.split_once('T').unwrap_or((rfc3339, ""));
    let minute: String = time.chars().take("hh:mm".len()).collect();
    Text(&format!("{day} {minute} UTC")).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{folder_of, on_kernel};
    use super::*;
    use crate::results::tests::results;
    use crate::results::{Part, Results};

    /// The page of these results.
    fn page(test: &str, all: &[Results]) -> String {
        let folder = folder_of(test, all);
        Report::read(&[&folder.0]).unwrap().to_html().unwrap()
    }

    /// Fails where tags do not nest, or `<` or `&` stand for themselves in a text.
    fn assert_nests(page: &str) {
        const VOID: [&str; 3] = ["meta", "input", "br"];
        let (mut open, mut rest) = (Vec::new(), page.strip_prefix("<!DOCTYPE html>").unwrap());
        while let Some((text, tag)) = rest.split_once('<') {
            let entity = |text: &str| {
                let name = text.split_once(';').map(|(name, _)| name);
                name.is_some_and(|name| ["amp", "lt", "gt", "quot", "apos", "#39"].contains(&name))
            };
            assert!(open.last() == Some(&"style") || text.split('&').skip(1).all(entity), "{text}");
            let (tag, after) = tag.split_once('>').expect("a tag ends");
            let name = tag.trim_start_matches('/').split_whitespace().next().expect("a tag has a name");
            assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric()), "<{tag}>");
            assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
            match tag {
                _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "</{name}> in {open:?}"),
                _ if VOID.contains(&name) || tag.ends_with('/') => (),
                _ => open.push(name),
            }
            rest = after;
        }
        assert_eq!((open, rest.trim()), (Vec::new(), ""));
    }

    fn verdict_of(page: &str, claim: &str) -> String {
        let (_, rest) = page.split_once(claim).unwrap_or_else(|| panic!("{claim} is not in {page}"));
        rest.split_once("</li>").unwrap().0.to_owned()
    }

    #[test]
    fn every_claim_is_there_once_with_its_label_range_figures_and_both_outcomes() {
        let page = page("both", &[results(), on_kernel()]);
        assert_nests(&page);
        for verdict in &results().verdicts {
            let sentence = format!("\"sentence\">{}<", verdict.claim);
            assert_eq!(page.matches(&sentence).count(), 1, "{sentence}");
        }
        let hybla = verdict_of(&page, "Hybla is far above Reno: 3 times or more");
        for part in [
            "expected, figure 4; range: 3 times or more",
            "✓ agrees</span> in virtual time",
            "✗ contradicted</span> on the kernel",
            "13.6 times [13.4, 13.7] at 60 km/h",
            "90% intervals, 3 seeds; detects 2%",
        ] {
            assert!(hybla.contains(part), "{part} is not in {hybla}");
        }
        assert!(page.contains("Of 3 claims in both worlds, 1 agree in one"), "{page}");
        for part in [
            "<tr><td>claims contradicted</td><td class=\"number mark contradicts\">1</td>\
             <td class=\"number mark contradicts\">2</td></tr>",
            "<tr><td>experiments not finished</td><td class=\"number\">0</td><td class=\"number\">0</td></tr>",
            "bentpipe lab run psats09-fig4 --on sim --seed 1 --seeds 3 --max-seeds 12</code>",
            "bentpipe lab run psats09-fig4 --on kernel --seed 1 --seeds 3 --max-seeds 3</code>",
            "Caini, Firrincieli, Lacamera, PSATS 2009, figure 4",
            "3 seeds from 1; ",
            "4.20 ± 0.25",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
    }

    #[test]
    fn a_world_without_a_verdict_says_why() {
        let named = |name: &str| Results { name: name.into(), ..results() };
        let page = page("alone", &[named("psats09-fig4"), named("psats09-fig3")]);
        assert_eq!(page.matches("on the kernel: not run here").count(), 3);
        assert_eq!(page.matches("on the kernel: virtual time only").count(), 3);
        assert!(!page.contains("claims in both worlds"));
        let mut other = on_kernel();
        other.verdicts[0].claim = "Another one".into();
        let page = self::page("other", &[results(), other]);
        assert!(verdict_of(&page, "Hybla is far above Reno").contains("on the kernel: not a claim here"));
        assert!(verdict_of(&page, "Another one").contains("in virtual time: not a claim here"));
    }

    #[test]
    fn no_text_is_markup_wherever_it_comes_from() {
        const EVIL: &str = "a<b>&\"'</p><script>";
        let mut results = Results { title: EVIL.into(), source: EVIL.into(), quick: true, ..results() };
        for verdict in &mut results.verdicts {
            verdict.claim = EVIL.into();
            verdict.reference = Some(EVIL.into());
            verdict.range = EVIL.into();
            verdict.observed = EVIL.into();
            verdict.certainty = Some(EVIL.into());
        }
        results.tables[0].content.title = EVIL.into();
        let mut plot = results.figures[0].content.clone();
        if let figure::Figure::Plot(plot) = &mut plot {
            plot.title = EVIL.into();
        }
        results.figures.push(Part::new("evil", plot));
        let page = page("evil", &[results]);
        assert_nests(&page);
        assert!(!page.contains("<script") && page.contains("a&lt;b&gt;&amp;"), "{page}");
    }

    #[test]
    fn the_page_needs_nothing_outside_it_and_has_both_themes_and_print() {
        let page = page("self-contained", &[results(), on_kernel()]);
        for outside in ["http:", "https:", "//", "url(", "@import", "src=", "<link", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg ").count(), 2);
        assert_eq!(page.matches(&figure::dark_rules()).count(), 1);
        assert!(page.matches("prefers-color-scheme: dark").count() == 2 && page.contains("@media print"));
    }

    #[test]
    fn what_a_reader_can_choose_is_in_the_style_and_on_the_elements() {
        let page = page("choice", &[results(), on_kernel()]);
        for choice in ["agrees", "undecided", "contradicts", DIFFERS, UNFINISHED] {
            assert!(page.contains(&format!("id=\"only-{choice}\"")), "{choice}");
            let rule = format!("body:has(#only-{choice}:checked) .filtered:not(.{choice})");
            assert!(page.contains(&rule), "{rule}");
        }
        assert!(page.contains("<li class=\"claim filtered agrees contradicts differs\">"), "{page}");
        assert!(page.contains("<section class=\"experiment filtered agrees contradicts differs undecided\""));
    }
}
