//! What stands in for an expansion after a mistake: an impl of the same trait, with placeholders where values are
//! missing, so that the mistake is not followed by "the trait is not implemented".
//!
//! The framework's checks pass over a name that is empty: it is a placeholder.

use proc_macro2::TokenStream;
use quote::quote;

use crate::expand::{name, on};
use crate::model::{Command, Consumer, Event};

/// An event without an aggregate.
pub(crate) fn event(event: &Event) -> TokenStream {
    let on_event = on(&event.generics, &event.ident, &quote!(::tidings::Event));
    let (r#type, version) = (name(&event.r#type), event.version);
    quote! {
        #on_event {
            const TYPE: &'static str = #r#type;
            const SCHEMA_VERSION: u32 = #version;
            const AGGREGATE: ::core::option::Option<&'static str> = ::core::option::Option::None;
            const RECIPIENT: ::core::option::Option<&'static str> = ::core::option::Option::None;

            fn key(&self) -> ::core::option::Option<::std::string::String> {
                ::core::option::Option::None
            }
        }
    }
}

/// A command; only the half of it that no other derive writes, if another one does.
pub(crate) fn command(command: &Command) -> TokenStream {
    if !command.also_event {
        return crate::expand::command(command);
    }
    let on_command = on(&command.generics, &command.ident, &quote!(::tidings::Command));
    let to = name(&command.to);
    quote! {
        #on_command {
            const TO: &'static str = #to;
        }
    }
}

/// A consumer of nothing.
pub(crate) fn consumer(consumer: &Consumer) -> TokenStream {
    let on_consumer = on(&consumer.generics, &consumer.ident, &quote!(::tidings::Consumer));
    let (consumer_name, source) = (name(&consumer.name), name(&consumer.source));
    quote! {
        #on_consumer {
            const NAME: &'static str = #consumer_name;
            const SOURCE: &'static str = #source;
            const ACCEPTS: &'static [::tidings::consumer::Accepts] = &[];

            fn options() -> ::tidings::consumer::Options {
                ::core::default::Default::default()
            }

            fn dispatch<'dispatch>(
                &'dispatch self,
                envelope: &'dispatch ::tidings::Envelope,
                _: &'dispatch mut ::tidings::Tx<'_>,
            ) -> ::tidings::consumer::Dispatch<'dispatch> {
                ::tidings::consumer::unhandled(envelope)
            }
        }
    }
}
