//! HTML report pages with SVG charts. A page is self-contained: no scripts, no network, light and
//! dark colour schemes. Pure.

mod axis;
mod bars_and_lines;
mod legend;
mod roofline;
mod scatter;
mod stacked_bars;
mod waterfall;

pub(crate) use bars_and_lines::{Bar, LineSeries, bar_chart, line_chart};
pub(crate) use legend::{Colour, legend};
pub(crate) use roofline::{RooflineChart, RooflineMarker, marker, roofline_chart};
pub(crate) use scatter::{ScatterPlot, ScatterPoint, scatter_plot};
pub(crate) use stacked_bars::{StackedBar, StackedBars, stacked_bars};
pub(crate) use waterfall::{Waterfall, WaterfallBar, waterfall};

const STYLE: &str = include_str!("style.css");
/// CSS that only pages with coloured charts need.
const COLOURS: &str = include_str!("colours.css");

/// The start of a page, up to its heading. The caller ends the page with `</body>\n</html>\n`.
pub(crate) fn head(title: &str) -> String {
    styled(title, "")
}

/// [`head`] for a page that contains [`stacked_bars`], [`waterfall`], [`roofline_chart`] or
/// [`scatter_plot`].
pub(crate) fn head_with_colours(title: &str) -> String {
    styled(title, COLOURS)
}

fn styled(title: &str, extra_css: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}{extra_css}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        title = escape(title)
    )
}

/// Escapes text for HTML. Control characters are invalid in HTML and become U+FFFD.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(letter),
            letter if letter.is_control() => safe.push(char::REPLACEMENT_CHARACTER),
            letter => safe.push(letter),
        }
    }
    safe
}
