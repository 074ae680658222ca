package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// wrongIn says what is wrong with JSON that does not decode: of a value of another type which member it is, and what it
// must be, in the words of JSON and not in those of Go.
func wrongIn(err error) string {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("%s must be %s, not %s", cmp.Or(wrong.Field, "it"), wanted(wrong.Type), given(wrong.Value))
}

// wanted names the JSON values that a type is decoded from.
func wanted(of reflect.Type) string {
	switch kind := of.Kind(); {
	case kind == reflect.Pointer:
		return wanted(of.Elem())
	case kind == reflect.Slice || kind == reflect.Array:
		return "an array"
	case kind == reflect.Struct || kind == reflect.Map:
		return "an object"
	case kind == reflect.String:
		return "a string"
	case kind == reflect.Bool:
		return "true or false"
	case kind >= reflect.Int && kind <= reflect.Int64:
		return "a whole number"
	case kind >= reflect.Uint && kind <= reflect.Uintptr:
		return "a whole number of 0 or more"
	case kind == reflect.Float32 || kind == reflect.Float64:
		return "a number"
	default:
		return "of another type"
	}
}

// given names the value that encoding/json describes: a type of JSON, or "number" and which one.
func given(value string) string {
	switch {
	case value == "object" || value == "array":
		return "an " + value
	case value == "bool":
		return "true or false"
	case strings.HasPrefix(value, "number "):
		return strings.TrimPrefix(value, "number ")
	default:
		return "a " + value
	}
}
