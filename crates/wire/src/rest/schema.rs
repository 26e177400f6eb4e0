//! JSON schemas for OpenAPI 3.1.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// A type with a JSON schema.
pub trait Schema {
    /// Name of the schema in the document. `None` if the schema is inlined.
    const NAME: Option<&'static str> = None;
    /// Whether the field may be omitted.
    const IS_OPTIONAL: bool = false;

    fn schema(schemas: &mut Schemas) -> Value;
}

/// The schemas that have a name. Each appears once.
#[derive(Debug, Default)]
pub struct Schemas {
    named: BTreeMap<&'static str, Value>,
}

impl Schemas {
    /// The schema of a type, or a reference to it if it has a name.
    pub fn schema_for<T: Schema>(&mut self) -> Value {
        let Some(name) = T::NAME else { return T::schema(self) };
        if !self.named.contains_key(name) {
            // Reserve the name first, because a type may refer to itself.
            self.named.insert(name, Value::Null);
            let schema = T::schema(self);
            self.named.insert(name, schema);
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    pub fn finish(self) -> Map<String, Value> {
        self.named.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
    }
}

pub(super) struct SchemaField {
    pub(super) name: &'static str,
    pub(super) about: String,
    pub(super) schema: Value,
    pub(super) is_optional: bool,
}

/// An object with these fields. A strict object allows no other fields.
pub(super) fn object(about: &str, is_strict: bool, fields: &[SchemaField]) -> Value {
    let required: Vec<&str> =
        fields.iter().filter(|field| !field.is_optional).map(|field| field.name).collect();
    let mut properties = Map::new();
    for SchemaField { name, about, schema, .. } in fields {
        let mut schema = schema.clone();
        if let (Some(schema), false) = (schema.as_object_mut(), about.is_empty()) {
            schema.insert("description".to_owned(), json!(about));
        }
        properties.insert((*name).to_owned(), schema);
    }
    let mut object = json!({ "type": "object", "description": about, "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if is_strict {
        object["additionalProperties"] = json!(false);
    }
    object
}

/// Defines a type whose JSON is an object, together with its schema. Doc comments become
/// descriptions. `strict` types are parsed from requests and allow no other fields.
macro_rules! view {
    (strict $($rest:tt)*) => {
        view!(@ true, [#[serde(deny_unknown_fields)]] $($rest)*);
    };
    (lenient $($rest:tt)*) => {
        view!(@ false, [] $($rest)*);
    };
    (@ $strict:literal, [$($serde:tt)*] $(#[doc = $about:literal])* $name:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty,)*
    }) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        $($serde)*
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $crate::rest::Schema for $name {
            const NAME: Option<&'static str> = Some(stringify!($name));

            fn schema(_schemas: &mut $crate::rest::Schemas) -> serde_json::Value {
                let fields = [$($crate::rest::schema::SchemaField {
                    name: stringify!($field),
                    about: concat!($($doc,)* "").trim().to_owned(),
                    schema: _schemas.schema_for::<$type>(),
                    is_optional: <$type as $crate::rest::Schema>::IS_OPTIONAL,
                }),*];
                let about = concat!($($about,)* "").trim();
                $crate::rest::schema::object(about, $strict, &fields)
            }
        }
    };
}
pub(super) use view;

impl<T: Schema> Schema for Option<T> {
    const IS_OPTIONAL: bool = true;

    fn schema(schemas: &mut Schemas) -> Value {
        json!({ "anyOf": [schemas.schema_for::<T>(), { "type": "null" }] })
    }
}

impl<T: Schema> Schema for Vec<T> {
    fn schema(schemas: &mut Schemas) -> Value {
        json!({ "type": "array", "items": schemas.schema_for::<T>() })
    }
}

impl<T: Schema> Schema for Box<T> {
    const NAME: Option<&'static str> = T::NAME;

    fn schema(schemas: &mut Schemas) -> Value {
        T::schema(schemas)
    }
}

/// Implements the schemas of types that refer to no other schema.
macro_rules! plain {
    ($($type:ty => $schema:tt,)*) => {
        $(impl $crate::rest::Schema for $type {
            fn schema(_: &mut $crate::rest::Schemas) -> serde_json::Value {
                serde_json::json!($schema)
            }
        })*
    };
}
pub(super) use plain;

plain! {
    bool => { "type": "boolean" },
    u32 => { "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32 },
    u64 => { "type": "integer", "minimum": 0 },
    i64 => { "type": "integer" },
    f64 => { "type": "number" },
    String => { "type": "string" },
    Timestamp => { "type": "string", "format": "date-time" },
    Value => {},
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macro declares public types")]
mod tests {
    use super::*;

    view! { strict
        /// Something
        /// small.
        Small {
            /// Number of items.
            count: u32,
            name: Option<String>,
        }
    }

    view! { lenient
        /// Contains others.
        Large {
            small: Vec<Small>,
        }
    }

    #[test]
    fn doc_comments_become_descriptions_and_types_appear_once() {
        let mut schemas = Schemas::default();
        let reference = schemas.schema_for::<Large>();
        assert_eq!(reference, json!({ "$ref": "#/components/schemas/Large" }));
        let named = schemas.finish();
        assert_eq!(named.keys().collect::<Vec<_>>(), ["Large", "Small"]);
        let small = &named["Small"];
        assert_eq!(small["required"], json!(["count"]));
        assert_eq!(small["description"], "Something small.");
        assert_eq!(small["properties"]["count"]["description"], "Number of items.");
        assert_eq!(small["additionalProperties"], false);
        assert!(serde_json::from_value::<Small>(json!({ "count": 1, "more": 1 })).is_err());
    }
}
