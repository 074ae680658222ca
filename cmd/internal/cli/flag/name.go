package flag

import (
	"regexp"
	"strings"
)

// NameLimit is the longest name of an app and of a pipeline.
const NameLimit = 40

// notOfNames is what names of apps, pipelines and stages have none of.
var notOfNames = regexp.MustCompile(`[^a-z0-9_-]+`)

// PlainName makes a name from any text: in lower case, and a dash for each run of what no name has. It may be empty,
// too long, or begin with a digit.
func PlainName(text string) string {
	return strings.Trim(notOfNames.ReplaceAllString(strings.ToLower(text), "-"), "-_")
}

// ValidName makes a name of a stage from any text.
func ValidName(text string) string {
	name := PlainName(text)
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		name = strings.TrimSuffix("run-"+name, "-")
	}
	return strings.TrimRight(name[:min(len(name), NameLimit)], "-_")
}
