//! Whether what the attributes say is right: everything that can be known without the types behind the names.
//!
//! What depends on those types is checked by the compiler, in what `expand` writes for it.

use quote::ToTokens;
use syn::{Data, Fields, Ident, LitStr, Member};

use crate::attr::Part;
use crate::diagnostics::{Diagnostics, list, nearest};
use crate::model::{Command, Consumer, Event};
use crate::token::check_token;

/// An event's names, and the field its key comes from.
pub(crate) fn event(event: &Event, diagnostics: &mut Diagnostics) {
    no_union(&event.ident, &event.data, "an event", diagnostics);
    name("type", event.r#type.as_ref(), diagnostics);
    name("aggregate", event.aggregate.given(), diagnostics);
    match (&event.aggregate, &event.key) {
        (Part::Given(aggregate), Part::Absent) => {
            diagnostics.report(
                aggregate,
                "`aggregate` needs a `key`, the field that tells one from another: add, for example, `key = job_id`",
            );
        }
        (Part::Absent, Part::Given(key)) => {
            diagnostics.report(key, "`key` needs an `aggregate`, the type of what it is the key of: add, for example, `aggregate = \"job\"`");
        }
        (Part::Given(_) | Part::Mistaken, _) | (_, Part::Absent | Part::Mistaken) => {}
    }
    if let Some(key) = event.key.given() {
        field(key, &event.ident, &event.data, diagnostics);
    }
}

/// A command's names.
pub(crate) fn command(command: &Command, diagnostics: &mut Diagnostics) {
    no_union(&command.ident, &command.data, "a command", diagnostics);
    name("type", command.r#type.as_ref(), diagnostics);
    name("to", command.to.as_ref(), diagnostics);
    if command.also_event {
        let ident = &command.ident;
        diagnostics.report(
            ident,
            format!(
                "`{ident}` is an event or a command, not both: derive one, and remove the other with its attribute"
            ),
        );
    }
}

/// A consumer's names, and that no type is listed twice.
pub(crate) fn consumer(consumer: &Consumer, diagnostics: &mut Diagnostics) {
    name("name", consumer.name.as_ref(), diagnostics);
    name("source", consumer.source.as_ref(), diagnostics);
    if let Some(source) = &consumer.source
        && source.value().contains('#')
    {
        diagnostics.report(source, "`source` contains `#`, which stands between a source and an event's id: remove it");
    }
    let mut names = Vec::new();
    for listed in consumer.listed() {
        let name = listed.name();
        if names.contains(&name) {
            diagnostics.report(&listed.path, format!("`{name}` is listed twice: remove one"));
        }
        names.push(name);
    }
}

fn no_union(ident: &Ident, data: &Data, what: &str, diagnostics: &mut Diagnostics) {
    if let Data::Union(_) = data {
        diagnostics.report(ident, format!("a union cannot be {what}: make `{ident}` a struct or an enum"));
    }
}

fn name(option: &str, name: Option<&LitStr>, diagnostics: &mut Diagnostics) {
    if let Some(name) = name
        && let Err(unfit) = check_token(&name.value())
    {
        diagnostics.report(name, format!("`{option}` {unfit}"));
    }
}

/// Whether the struct has the field.
fn field(key: &Member, ident: &Ident, data: &Data, diagnostics: &mut Diagnostics) {
    let fields = match data {
        Data::Struct(data) => &data.fields,
        Data::Enum(_) => {
            diagnostics.report(
                key,
                "an enum has no field to take a key from: put it into a struct, beside a field that is the key",
            );
            return;
        }
        Data::Union(_) => return,
    };
    if fields.members().any(|member| member == *key) {
        return;
    }
    let written = key.to_token_stream().to_string();
    let members: Vec<String> = fields.members().map(|member| member.to_token_stream().to_string()).collect();
    let members = || members.iter().map(String::as_str);
    let remedy = match (fields, nearest(&written, members())) {
        (Fields::Unit, _) => format!(": `{ident}` has no fields"),
        (_, Some(meant)) => format!(", did you mean `{meant}`?"),
        (_, None) if fields.is_empty() => format!(": `{ident}` has no fields"),
        (Fields::Unnamed(_), None) => format!(": the fields of `{ident}` are numbered: {}", list(members())),
        (Fields::Named(_), None) => format!(": the fields of `{ident}` are {}", list(members())),
    };
    diagnostics.report(key, format!("no field `{written}` to take the aggregate's key from{remedy}"));
}
