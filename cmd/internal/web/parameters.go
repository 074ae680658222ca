package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/workflows/nearest"
)

// parameter is one name of a query. It describes itself in the document and reads itself in a handler, so that neither
// can differ.
type parameter struct {
	name, about string
	kind        parameterKind
	least, most int64    // of a whole number
	low, high   float64  // of a probability
	choices     []string // of a choice
	usual       string   // what is read where nothing is given
	example     string
	required    bool
}

// parameterKind is how the text of a parameter is read.
type parameterKind int

const (
	plainText parameterKind = iota
	wholeNumber
	probability
	oneOf
	pointInTime
	yesOrNo
)

func words(name, about string) parameter { return parameter{name: name, about: about, example: name} }

func whole(name, about string, least, most, usual int64) parameter {
	p := parameter{
		name: name, about: about, kind: wholeNumber, least: least, most: most,
		example: strconv.FormatInt(max(least, usual), 10),
	}
	if usual >= least {
		p.usual = strconv.FormatInt(usual, 10)
	}
	return p
}

// within is a probability between two.
func within(name, about string, low, high float64) parameter {
	return parameter{name: name, about: about, kind: probability, low: low, high: high, example: "0.95"}
}

func choice[S ~string](name, about string, choices ...S) parameter {
	p := parameter{name: name, about: about, kind: oneOf, example: string(choices[0])}
	for _, one := range choices {
		p.choices = append(p.choices, string(one))
	}
	return p
}

// moment is a time: RFC 3339, or how long ago.
func moment(name, about string) parameter {
	return parameter{
		name: name, about: about + "; as RFC 3339 or as a duration back from now, such as 90m, 24h or 7d",
		kind: pointInTime, example: "24h",
	}
}

func flag(name, about string) parameter {
	return parameter{name: name, about: about, kind: yesOrNo, usual: "false", example: "true"}
}

// or makes usual what is read where nothing is given.
func (p parameter) or(usual any) parameter {
	p.usual = fmt.Sprint(usual)
	return p
}

// must refuses requests without the parameter.
func (p parameter) must() parameter {
	p.required = true
	return p
}

// text reads a text or a choice.
func (p parameter) text(r *http.Request) (string, error) {
	given := r.FormValue(p.name)
	if given == "" {
		return p.usual, nil
	}
	if p.kind == oneOf && !slices.Contains(p.choices, given) {
		return "", Invalid(suggest(given, p.choices), "%s %.80q is none of %s", p.name, given, strings.Join(p.choices, ", "))
	}
	return given, nil
}

// number reads a whole number within the bounds; 0 where nothing is given and nothing is usual.
func (p parameter) number(r *http.Request) (int64, error) {
	given := r.FormValue(p.name)
	if given == "" {
		given = p.usual
	}
	if given == "" {
		return 0, nil
	}
	number, err := strconv.ParseInt(given, 10, 64)
	if err != nil || number < p.least || number > p.most {
		return 0, Invalid("", "%s %.80q is not a number from %d to %d", p.name, given, p.least, p.most)
	}
	return number, nil
}

// part reads a probability; 0 where nothing is given.
func (p parameter) part(r *http.Request) (float64, error) {
	given := r.FormValue(p.name)
	if given == "" {
		return 0, nil
	}
	part, err := strconv.ParseFloat(given, 64)
	if err != nil || !(part >= p.low && part <= p.high) {
		return 0, Invalid("", "%s %.80q is not a probability from %g to %g", p.name, given, p.low, p.high)
	}
	return part, nil
}

// moment reads a time; durations go back from now. It is the zero time where nothing is given.
func (p parameter) moment(r *http.Request, now time.Time) (time.Time, error) {
	given := r.FormValue(p.name)
	if given == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339Nano, given); err == nil {
		return at, nil
	}
	back, err := longDuration(given)
	if err != nil || back < 0 {
		return time.Time{}, Invalid("give 2026-11-20T09:00:00Z, or how long ago: 90m, 24h, 7d",
			"%s %.80q is neither a time nor a duration", p.name, given)
	}
	return now.Add(-back), nil
}

// yes reads true or false.
func (p parameter) yes(r *http.Request) (bool, error) {
	given := r.FormValue(p.name)
	if given == "" {
		return false, nil
	}
	yes, err := strconv.ParseBool(given)
	if err != nil {
		return false, Invalid("", "%s %.80q is neither true nor false", p.name, given)
	}
	return yes, nil
}

// longDuration reads what time.ParseDuration does, and whole days: "7d".
func longDuration(text string) (time.Duration, error) {
	if days, found := strings.CutSuffix(text, "d"); found {
		count, err := strconv.Atoi(days)
		if err != nil || count < 0 || count > 36500 {
			return 0, fmt.Errorf("read %q: not a number of days from 0 to 36500", text)
		}
		return time.Duration(count) * 24 * time.Hour, nil
	}
	return time.ParseDuration(text)
}

// checkQuery refuses names that the route does not know, because they are misspelt ones, names that are given twice,
// and required ones that are missing.
func checkQuery(given url.Values, known []parameter) error {
	var names []string
	for _, p := range known {
		names = append(names, p.name)
		if p.required && given.Get(p.name) == "" {
			return Invalid("add ?"+p.name+"= to the address: "+p.about, "the query has no %s", p.name)
		}
	}
	for name, values := range given {
		if !slices.Contains(names, name) {
			hint := suggest(name, names)
			if len(names) == 0 {
				hint = "leave it out: there is nothing to choose here"
			}
			return Invalid(hint, "the query has an unknown parameter %.80q", name)
		}
		if len(values) > 1 {
			return Invalid("give it once", "the query has %s %d times", name, len(values))
		}
	}
	return nil
}

// suggest says which names are near, or which there are.
func suggest(name string, names []string) string {
	if near := nearest.Names(name, names); len(near) > 0 {
		return "did you mean " + strings.Join(near, ", ") + "?"
	}
	return "there are: " + strings.Join(names, ", ")
}
