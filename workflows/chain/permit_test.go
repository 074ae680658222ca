package chain_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/chain"
)

const permitted = `name: permitted
code: src
environment: {MODE: "fast-${size}"}
parameters: {size: 3}
stages:
  list:
    run: "python list.py"
    outputs: {part: part}
  fan:
    for_each: {n: [1, 2]}
    run: [python, fan.py, "--n=${n}"]
    directory: sub
    outputs: {out: out}
  sum:
    run: "echo $((${size} + 1)) > sum"
    files: {parts/: fan.out, one: list.part}
`

// TestAttackACommandThatTheChainDoesNotDeclareIsRefused changes each part of the commands that runs of a chain make.
func TestAttackACommandThatTheChainDoesNotDeclareIsRefused(t *testing.T) {
	t.Parallel()
	c := packed(t, mustParse(t, permitted))
	r := &recorder{answer: echo}
	if _, err := start(t, c, nil, r.run); err != nil {
		t.Fatal(err)
	}
	for task, command := range r.commands {
		if err := c.Permits(task[:len(task)-2], command); err != nil {
			t.Errorf("%s, as the run made it: %v", task, err)
		}
	}
	for _, tt := range []struct {
		name, stage, task string
		edit              func(*wire.Command)
	}{
		{"another script", "list", "list-0", func(c *wire.Command) { c.Arguments[3] = "touch /tmp/owned" }},
		{"a script that goes on", "list", "list-0", func(c *wire.Command) { c.Arguments[3] += "; id" }},
		{"a program in the script's place", "list", "list-0", func(c *wire.Command) { c.Arguments = []string{"id"} }},
		{"one argument more", "fan", "fan-0", func(c *wire.Command) { c.Arguments = append(c.Arguments, "x") }},
		{"another program", "fan", "fan-0", func(c *wire.Command) { c.Arguments[0] = "sh" }},
		{"another flag before the value", "fan", "fan-0", func(c *wire.Command) { c.Arguments[2] = "--m=1" }},
		{"the command of another stage", "fan", "list-0", func(*wire.Command) {}},
		{"a stage that there is not", "none", "list-0", func(*wire.Command) {}},
		{"one variable more", "list", "list-0", func(c *wire.Command) { c.Environment["LD_PRELOAD"] = "/tmp/x.so" }},
		{"a variable less", "list", "list-0", func(c *wire.Command) { delete(c.Environment, "MODE") }},
		{"another variable", "list", "list-0", func(c *wire.Command) { c.Environment["MODE"] = "slow" }},
		{"an expression in arithmetic", "sum", "sum-0", func(c *wire.Command) { c.Environment["size"] = "a[$(id)]" }},
		{"other code", "list", "list-0", func(c *wire.Command) { c.Code = ref("9") }},
		{"requirements", "list", "list-0", func(c *wire.Command) { c.Requirements = ref("9") }},
		{"an image", "list", "list-0", func(c *wire.Command) { c.Image = "evil" }},
		{"in place", "list", "list-0", func(c *wire.Command) { c.InPlace = "/" }},
		{"another directory", "fan", "fan-0", func(c *wire.Command) { c.Directory = "" }},
		{"another output", "fan", "fan-0", func(c *wire.Command) { c.Outputs[0].Path = "secret" }},
		{"a file over the code", "fan", "fan-0", func(c *wire.Command) {
			c.Files = append(c.Files, wire.CommandFile{Path: "sub/fan.py", Artifact: ref("9")})
		}},
		{"a file under no number", "sum", "sum-0", func(c *wire.Command) { c.Files[0].Path = "parts/../x" }},
	} {
		command := r.commands[tt.task]
		command.Arguments, command.Files = slices.Clone(command.Arguments), slices.Clone(command.Files)
		command.Environment, command.Outputs = maps.Clone(command.Environment), slices.Clone(command.Outputs)
		tt.edit(&command)
		if err := c.Permits(tt.stage, command); err == nil {
			t.Errorf("%s: permitted", tt.name)
		}
	}
	other := r.commands["fan-0"]
	other.Arguments = []string{"python", "fan.py", "--n=7"}
	if err := c.Permits("fan", other); err != nil {
		t.Errorf("another value: %v", err)
	}
}

func TestAttackASinglePermitsNoCommandThatItsRunDoesNotBring(t *testing.T) {
	t.Parallel()
	c, err := chain.Single("one")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Permits("one", wire.Command{Arguments: []string{"id"}}); err == nil {
		t.Error("permitted without a run")
	}
	var in chain.SingleInput
	if err := json.Unmarshal([]byte(`{"command":{"arguments":["id"],"environment":{},"code":{"digest":"","bytes":0}}}`),
		&in); err != nil {
		t.Fatal(err)
	}
	if err := in.Permits(wire.Command{Arguments: []string{"id"}}); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := in.Permits(wire.Command{Arguments: []string{"id", "-u"}}); err == nil {
		t.Error("another is permitted")
	}
}
