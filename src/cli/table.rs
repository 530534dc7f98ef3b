//! Results as a table for people.

use std::io::{IsTerminal, stdout};

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use stoker::event::{Failure, Label, Timing, printable};

/// Columns of a table that goes elsewhere than to a terminal.
const WIDTH: u16 = 100;

/// Labels shown an image.
const SHOWN_LABELS: usize = 3;

/// A table of results: object, best labels with scores, and for results of the pipeline the time by stage.
pub(super) struct Results {
    table: Table,
}

/// One result.
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    pub(super) labels: &'a [Label],
    pub(super) error: Option<&'a Failure>,
    /// For tables with columns of the stages.
    pub(super) timing: Option<&'a Timing>,
}

impl Results {
    /// An empty table; `timed` adds the columns of the stages.
    pub(super) fn new(timed: bool) -> Self {
        let mut table = Table::new();
        table.load_style(UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        if !stdout().is_terminal() {
            table.set_width(WIDTH);
        }
        let mut header = vec!["object", "labels"];
        if timed {
            header.extend(["fetch", "decode", "wait", "infer", "total ms"]);
        }
        table.set_header(header);
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Self { table }
    }

    /// Adds one result.
    pub(super) fn add(&mut self, row: Row<'_>) {
        let mut cells = vec![printable(row.name), outcome(&row)];
        if let Some(spent) = row.timing {
            let ms = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), |ms| ms.to_string());
            cells.extend([ms(spent.fetch), ms(spent.decode), ms(spent.wait), ms(spent.infer), spent.total.to_string()]);
        }
        self.table.add_row(cells);
    }
}

impl std::fmt::Display for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.table.fmt(f)
    }
}

fn outcome(row: &Row<'_>) -> String {
    match row.error {
        Some(error) => format!("{}: {}", error.code, error.message),
        None if row.labels.is_empty() => "no label reaches --min-score".to_owned(),
        None => {
            let best = row.labels.iter().take(SHOWN_LABELS);
            best.map(|label| format!("{} {:.0} %", label.name, label.score * 100.0)).collect::<Vec<_>>().join("\n")
        }
    }
}
