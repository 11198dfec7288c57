//! `#[derive(Event)]` and `#[derive(Command)]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Member;

use super::{name, on};
use crate::model::{Command, Event};

/// `impl Event`.
pub(crate) fn event(event: &Event) -> TokenStream {
    let on_event = on(&event.generics, &event.ident, &quote!(::tidings::Event));
    let (r#type, version) = (name(&event.r#type), event.version);
    let aggregate = option(event.aggregate.given());
    let key = option(event.key.given().map(key));
    quote! {
        #on_event {
            const TYPE: &'static str = #r#type;
            const SCHEMA_VERSION: u32 = #version;
            const AGGREGATE: ::core::option::Option<&'static str> = #aggregate;
            const RECIPIENT: ::core::option::Option<&'static str> = ::core::option::Option::None;

            fn key(&self) -> ::core::option::Option<::std::string::String> {
                #key
            }
        }
    }
}

/// `impl Event` and `impl Command`.
pub(crate) fn command(command: &Command) -> TokenStream {
    let on_event = on(&command.generics, &command.ident, &quote!(::tidings::Event));
    let on_command = on(&command.generics, &command.ident, &quote!(::tidings::Command));
    let (r#type, version, to) = (name(&command.r#type), command.version, name(&command.to));
    quote! {
        #on_event {
            const TYPE: &'static str = #r#type;
            const SCHEMA_VERSION: u32 = #version;
            const AGGREGATE: ::core::option::Option<&'static str> = ::core::option::Option::None;
            const RECIPIENT: ::core::option::Option<&'static str> = ::core::option::Option::Some(#to);

            fn key(&self) -> ::core::option::Option<::std::string::String> {
                ::core::option::Option::None
            }
        }

        #on_command {
            const TO: &'static str = #to;
        }
    }
}

/// The key as text. Its place is the option's, so that a field without `Display` is reported there.
fn key(field: &Member) -> TokenStream {
    let at = match field {
        Member::Named(field) => field.span(),
        Member::Unnamed(field) => field.span,
    };
    let at = Span::call_site().located_at(at);
    quote_spanned!(at=> ::std::string::ToString::to_string(&self.#field))
}

fn option(value: Option<impl ToTokens>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}
