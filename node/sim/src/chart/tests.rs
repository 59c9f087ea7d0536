//! What is drawn, and that it is well-formed whatever it is called.

use super::*;

fn chart() -> Chart {
    let series = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.to_vec() };
    Chart {
        title: "a < b & \"c\" > 'd'\u{1b}[2J\0".into(),
        x_label: "x".into(),
        y_label: "y".into(),
        series: vec![
            series("up", &[(0.0, 0.0), (100.0, 50.0)]),
            series("</text><script>", &[(0.0, 50.0), (f64::NAN, 1.0), (100.0, f64::INFINITY), (50.0, 25.0)]),
        ],
    }
}

/// Tags close in the order in which they were opened, and signs outside of them are entities. A reader of the little
/// XML that is written here.
fn well_formed(text: &str) -> Result<usize, String> {
    let mut open: Vec<String> = Vec::new();
    let mut elements = 0;
    let mut rest = text.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").ok_or("no declaration")?;
    while let Some(start) = rest.find('<') {
        check_text(&rest[..start])?;
        let end = rest.find('>').ok_or("a tag that does not end")?;
        let tag = &rest[start + 1..end];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("{name} closes what is not open"));
            }
        } else {
            elements += 1;
            if tag.matches('"').count() % 2 != 0 || tag.contains('<') {
                return Err(format!("attributes of <{tag}>"));
            }
            let name = tag.split_whitespace().next().unwrap_or_default();
            if !tag.ends_with('/') {
                open.push(name.to_owned());
            }
        }
        rest = &rest[end + 1..];
    }
    if open.is_empty() && rest.trim().is_empty() { Ok(elements) } else { Err(format!("left open: {open:?}")) }
}

fn check_text(text: &str) -> Result<(), String> {
    if text.contains('>') || text.chars().any(|c| c.is_control() && c != '\n') {
        return Err(format!("bare signs in {text:?}"));
    }
    for entity in text.split('&').skip(1) {
        if !["amp;", "lt;", "gt;", "quot;", "apos;"].iter().any(|known| entity.starts_with(known)) {
            return Err(format!("no entity: &{entity}"));
        }
    }
    Ok(())
}

#[test]
fn svg_is_well_formed_whatever_the_names_are() {
    let svg = chart().svg();
    let elements = well_formed(&svg).unwrap_or_else(|fault| panic!("{fault}\n{svg}"));
    assert!(elements > 20);
    assert!(svg.contains("a &lt; b &amp; &quot;c&quot; &gt; &apos;d&apos;"), "{svg}");
    assert!(svg.contains("&lt;/text&gt;&lt;script&gt;"));
    // The points of the first line: bottom left to the top right of the frame.
    assert!(svg.contains("<polyline points=\"80.0,420.0 776.0,48.0\""), "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    well_formed(&Chart::default().svg()).expect("an empty chart is one too");
    // The reader itself tells good from bad.
    assert!(well_formed(&svg.replace("</text>", "")).is_err());
    assert!(well_formed(&svg.replace("&lt;", "&")).is_err());
}

#[test]
fn axes_go_from_round_number_to_round_number() {
    let ticks = |least: f64, most: f64| {
        let axis = Axis::new(least, most);
        axis.ticks().map(|tick| axis.label(tick)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ticks(0.0, 100.0), "0 20 40 60 80 100");
    assert_eq!(ticks(0.0, 0.3), "0.00 0.05 0.10 0.15 0.20 0.25 0.30");
    assert_eq!(ticks(3.0, 3.0), "3.0 3.5");
    assert_eq!(ticks(-1.0, 1.0), "-1.0 -0.5 0.0 0.5 1.0");
    assert_eq!(ticks(0.0, 0.0), "0.0 0.2");
    assert_eq!(ticks(1_200.0, 98_000.0), "0 20000 40000 60000 80000 100000");
}

#[test]
fn text_has_the_lines_and_nothing_that_steers() {
    let mut drawn = chart();
    drawn.series.truncate(1);
    assert!(drawn.has_line());
    let text = drawn.text();
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 1 + 16 + 3);
    assert!(rows[1].starts_with("50 |") && rows[1].ends_with('*'), "{text}");
    assert!(rows[16].starts_with(" 0 |**"), "{text}");
    assert_eq!(rows[1..17].iter().map(|row| row.matches('*').count()).sum::<usize>(), 64, "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.contains("* up"));
    assert!(!Chart::default().has_line());
    assert!(!Chart::default().text().is_empty());
}
