package stack

import (
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// variablePrefix begins the environment variables that are ours.
const variablePrefix = "SPILLWAY_"

// unset are the variables that commands read and that are no settings.
var unset = []string{
	config.FileVariable, tokenVariable, session.TokenVariable, session.AuthorityVariable, engine.RoleVariable,
	engine.RunnerVariable, "SPILLWAY_ALERT_WEBHOOKS",
}

// strangers are the variables of the environment that look as if they said a setting, and say none: commands ignore
// them. One that is nearly that of a setting is a mistake; others may be of programs beside us.
func strangers(t *tool.Tool, known config.Settings) (findings []finding) {
	if t.Deps.Environ == nil {
		return nil
	}
	for _, variable := range []string{wire.RoleEnvironment, wire.RunEnvironment} {
		if _, inStage := t.Deps.Environment(variable); inStage { // which is told of many more
			return nil
		}
	}
	settings := slices.Clone(unset)
	for _, setting := range known {
		settings = append(settings, config.Variable(setting.Flag))
	}
	for _, line := range slices.Sorted(slices.Values(t.Deps.Environ())) {
		name, _, _ := strings.Cut(line, "=")
		bare, ours := strings.CutPrefix(name, variablePrefix)
		if !ours || slices.Contains(settings, name) {
			continue
		}
		found := finding{name, notice, "it says no setting, and no command reads it", "`spillway help settings` tells how " +
			"variables are named"}
		var all []string
		for _, setting := range settings {
			all = append(all, strings.TrimPrefix(setting, variablePrefix))
		}
		if near := nearest.Names(bare, all); len(near) > 0 {
			found.Severity = failed
			found.Do = "did you mean " + variablePrefix + strings.Join(near, ", "+variablePrefix) + "?"
		}
		findings = append(findings, found)
	}
	return findings
}
