package wire

import (
	"encoding/json"
	"slices"
	"strings"
)

// mostKinds is how many endings of files are named: what reads many kinds is like nothing else for that.
const mostKinds = 3

// InputKind is what kind of input a function reads: the endings of the names of files in its encoded input, one object
// deep, or else what that is.
func InputKind(input json.RawMessage) string {
	var value any
	if json.Unmarshal(input, &value) != nil {
		return ""
	}
	switch v := value.(type) {
	case []any:
		return "a list"
	case string:
		return oneOf(endings(nil, v), "a text")
	case float64:
		return "a number"
	case map[string]any:
		var found []string
		for _, one := range v { // in any order: what is found is sorted
			if text, isText := one.(string); isText {
				found = endings(found, text)
			}
		}
		return oneOf(found, "an object")
	default:
		return ""
	}
}

// InputKind is what kind of input the command reads: the endings of the names of the files that are put for it, or
// else of those that are its arguments after the program and its script; empty where there are none.
func (c Command) InputKind() string {
	var found []string
	for _, file := range c.Files {
		found = endings(found, file.Path)
	}
	if len(found) == 0 && len(c.Arguments) > 2 {
		for _, argument := range c.Arguments[2:] {
			found = endings(found, argument)
		}
	}
	return oneOf(found, "")
}

// endings adds that of a name of a file to those that were found, sorted and in small letters; a text that is none has
// none.
func endings(found []string, text string) []string {
	match := extension.FindStringSubmatch(text)
	if match == nil {
		return found
	}
	ending := strings.ToLower(match[1])
	at, known := slices.BinarySearch(found, ending)
	if known {
		return found
	}
	return slices.Insert(found, at, ending)
}

// oneOf writes the endings, or otherwise where there are none or too many.
func oneOf(found []string, otherwise string) string {
	if len(found) == 0 || len(found) > mostKinds {
		return otherwise
	}
	return strings.Join(found, " and ")
}
