package display

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// outputWidth is the width of the names of outputs, STAGE.OUTPUT TASK.
const outputWidth = 24

// shownTasks is how many tasks of a stage are told one by one.
const shownTasks = 8

// Outputs returns one line for each file that a chain has left, with its size and the beginning of its digest, and for
// each value that its last programs reported. The stages are told in the order given.
func Outputs(result chain.Result, stages []string, s Style) []string {
	var files, values []string
	for _, name := range stages {
		stage := result.Stages[name]
		for _, output := range slices.Sorted(maps.Keys(stage.Outputs)) {
			files = append(files, outputLines(Clean(name+"."+output), stage.Outputs[output])...)
		}
		for task, reported := range stage.Values {
			if task == shownTasks {
				values = append(values, fmt.Sprintf("    %d more tasks of %s", len(stage.Values)-task, Clean(name)))
				break
			}
			label := Clean(name)
			if len(stage.Values) > 1 {
				label += " " + strconv.Itoa(task)
			}
			if text := Values(reported, s); text != "" {
				values = append(values, fmt.Sprintf("  %-*s  %s", outputWidth, label, text))
			}
		}
	}
	var lines []string
	if len(files) > 0 {
		lines = append(lines, "", s.paint(dim, fmt.Sprintf("  %-*s  %-24s %10s  %s", outputWidth, "output", "path", "size",
			"digest")))
		lines = append(lines, files...)
	}
	if len(values) > 0 {
		lines = append(lines, "", s.paint(dim, "  result"))
		lines = append(lines, values...)
	}
	return lines
}

// outputLines tells one output of a stage: of each task, or of many tasks their number and sum.
func outputLines(label string, files []wire.CommandFile) []string {
	var lines []string
	var more int
	var rest quantity.Bytes
	for task, file := range files {
		if file.Artifact.Digest == "" {
			continue // an optional one that was left out
		}
		if task >= shownTasks {
			more++
			rest += quantity.Bytes(file.Artifact.Bytes)
			continue
		}
		one := label
		if len(files) > 1 {
			one += " " + strconv.Itoa(task)
		}
		path := file.Path
		if file.Tree {
			path = strings.TrimSuffix(path, "/") + "/"
		}
		path = Name(path)
		digest := Clean(file.Artifact.Digest)
		lines = append(lines, fmt.Sprintf("  %-*s  %-24s %10s  %s", outputWidth, one, path,
			quantity.Bytes(file.Artifact.Bytes), digest[:min(len(digest), 12)]))
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("  %-*s  %d more of %s in all", outputWidth, label, more, rest))
	}
	return lines
}

// Values writes what a program reported, sorted by name: "accuracy 0.98, classes ["a","b"]".
func Values(reported map[string]any, s Style) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(reported)) {
		encoded, err := json.Marshal(reported[name])
		if err != nil {
			continue // it came as JSON
		}
		parts = append(parts, s.cut(Clean(name+" "+string(encoded)), 80))
	}
	return strings.Join(parts, ", ")
}
