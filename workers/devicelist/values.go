package devicelist

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// fields reads a mapping whose keys are known; false when it is none.
func (r *reader) fields(node *yaml.Node, what string, read map[string]func(*yaml.Node)) bool {
	if node.Kind != yaml.MappingNode {
		r.report(node, "%s is %s; give keys and values: %s", what, written(node),
			strings.Join(slices.Sorted(maps.Keys(read)), ", "))
		return false
	}
	first := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field, known := read[key.Value]
		switch {
		case !known:
			r.report(key, "unknown key %q in %s; %s", key.Value, what, nearby(key.Value, slices.Sorted(maps.Keys(read))))
		case first[key.Value] > 0:
			r.report(key, "key %q is there twice, first on line %d; keep one of them", key.Value, first[key.Value])
		default:
			first[key.Value] = max(key.Line, 1)
			field(value)
		}
	}
	return true
}

func (r *reader) items(node *yaml.Node, what string) []*yaml.Node {
	if node.Kind != yaml.SequenceNode {
		r.report(node, "%s is %s; give a list", what, written(node))
		return nil
	}
	return node.Content
}

// nearby says which of the known names a name may have meant.
func nearby(name string, known []string) string {
	if near := nearest.Names(name, known); len(name) < 100 && len(near) > 0 {
		return "nearest: " + strings.Join(near, ", ")
	}
	const shown = 12
	if len(known) > shown {
		return fmt.Sprintf("known: %s and %d more", strings.Join(known[:shown], ", "), len(known)-shown)
	}
	return "known: " + strings.Join(known, ", ")
}

// deviceWord is what IDs and classes are made of: it is printed, and part of names that we make.
var deviceWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}$`)

func (r *reader) word(node *yaml.Node, what, example string) string {
	if node.Kind != yaml.ScalarNode || !deviceWord.MatchString(node.Value) || node.Value == "all" {
		r.report(node, "%s is %s; give a word of letters, digits and ._:/- such as %s", what, written(node), example)
		return ""
	}
	return node.Value
}

func (r *reader) number(node *yaml.Node, what string, least, most float64, whole bool) float64 {
	value, err := strconv.ParseFloat(node.Value, 64)
	if node.Kind != yaml.ScalarNode || err != nil || !(value >= least && value <= most) ||
		(whole && value != math.Trunc(value)) {
		kind := "number"
		if whole {
			kind = "whole number"
		}
		r.report(node, "%s is %s; give a %s from %g to %g", what, written(node), kind, least, most)
		return least
	}
	return value
}

func (r *reader) memory(node *yaml.Node) quantity.Bytes {
	size, err := quantity.ParseBytes(node.Value)
	if node.Kind != yaml.ScalarNode || err != nil || size > graph.MostBytes {
		r.report(node, "memory is %s; give more than 0 and at most %v with its unit, such as 16GiB", written(node),
			graph.MostBytes)
		return 0
	}
	return size
}

// bandwidth reads bytes per second, such as 10GiB/s, or bits as networks are sold, such as 100Gbit/s.
func (r *reader) bandwidth(node *yaml.Node) float64 {
	amount, rate := strings.CutSuffix(node.Value, "/s")
	share := 1.0
	if bits, ok := strings.CutSuffix(amount, "bit"); ok {
		amount, share = bits+"B", 1.0/8
	}
	size, err := quantity.ParseBytes(amount)
	if node.Kind != yaml.ScalarNode || !rate || err != nil {
		r.report(node, "bandwidth is %s; give an amount per second, such as 10GiB/s or 100Gbit/s", written(node))
		return 0
	}
	return float64(size) * share
}

func (r *reader) latency(node *yaml.Node) graph.Seconds {
	d, err := time.ParseDuration(node.Value)
	if node.Kind != yaml.ScalarNode || err != nil || d < 0 || d > mostLatency {
		r.report(node, "latency is %s; give a time from 0s to %v with its unit, such as 10us", written(node), mostLatency)
		return 0
	}
	return graph.Seconds(d.Seconds())
}

// written is a value as a message shows it.
func written(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
	}
	const shown = 40
	text := []rune(node.Value)
	if len(text) == 0 {
		return "empty"
	}
	if len(text) > shown {
		return strconv.Quote(string(text[:shown]) + "...")
	}
	return strconv.Quote(node.Value)
}
