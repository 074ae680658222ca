package chain

import (
	"math"
	"regexp"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// longest bounds every duration of a chain: Temporal would end an attempt that takes longer.
const longest = 30 * 24 * time.Hour

// duration reads a time such as 10m or 1h30m.
func (r *reader) duration(node *yaml.Node, what string) time.Duration {
	text, ok := r.plain(node, what, "10m or 1h30m")
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		r.report(at(node), "%s is %q; give a time with its unit, such as 30s, 10m or 1h30m", what, text)
	case d <= 0 || d > longest:
		r.report(at(node), "%s is %s; give a time of more than 0 and at most %.0fh", what, text, longest.Hours())
	}
	return d
}

var dollarAmount = regexp.MustCompile(`^\$?([0-9]+(?:\.[0-9]+)?)$`)

// dollars reads an amount such as 2, 0.50 or $0.50.
func (r *reader) dollars(node *yaml.Node, what string) quantity.Money {
	text, ok := r.plain(node, what, "2.00")
	if !ok {
		return 0
	}
	match := dollarAmount.FindStringSubmatch(text)
	if match == nil {
		r.report(at(node), "%s is %q; give US dollars, such as 2 or 0.50", what, text)
		return 0
	}
	amount, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		amount = math.Inf(1)
	}
	money, err := quantity.Dollars(amount)
	if err != nil || money <= 0 {
		r.report(at(node), "%s is %s; give more than 0 and less than 4 million US dollars", what, text)
	}
	return money
}

// maxCores and maxMemory are more than any host has.
const (
	maxCores  = 10_000
	maxMemory = 1 << 50
	mostGPUs  = 1024
)

// cpu reads cores such as 2 or 0.5, or thousandths of them such as 500m.
func (r *reader) cpu(node *yaml.Node) quantity.Milli {
	text, ok := r.plain(node, "cpu", "2, 0.5 or 500m")
	if !ok {
		return 0
	}
	cores, err := quantity.ParseCores(text)
	if err != nil {
		r.report(at(node), "cpu is %q; give 0.001 to %d cores, such as 2, 0.5 or 500m", text, maxCores)
	}
	return cores
}

// memory reads bytes with their unit, such as 512MiB, 1.5GiB or 2GB.
func (r *reader) memory(node *yaml.Node) quantity.Bytes {
	text, ok := r.plain(node, "memory", "512MiB or 2GB")
	if !ok {
		return 0
	}
	bytes, err := quantity.ParseBytes(text)
	if err != nil {
		r.report(at(node), "memory is %q; give at most %s with its unit, such as 512MiB, 1.5GiB or 2GB", text,
			quantity.Bytes(maxMemory))
	}
	return bytes
}
