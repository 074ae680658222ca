package stack

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// tryServers asks each server that the settings name for what the engine will ask of it, and tries the ports.
func tryServers(ctx context.Context, all *told, state string) (findings []finding) {
	lives, err := access.EngineLives(state)
	running := err == nil && lives
	for _, name := range []string{"http-port", "temporal-port", "ui-port", "nats-port"} {
		if port := all.value(name); port != "" {
			findings = append(findings, tryPort(ctx, name, net.JoinHostPort("127.0.0.1", port), running))
		}
	}
	if address := all.value("listen"); address != "" {
		findings = append(findings, tryPort(ctx, "listen", address, running))
	}
	if webhooks := all.flags.Lookup("alert-webhook"); webhooks.Changed && !all.wrong[webhooks.Name] {
		findings = append(findings, finding{
			webhooks.Name, fine, display.Count(len(valuesOf(webhooks)), "URL") + ", read and not posted to", "",
		})
	}
	if location := all.value("artifacts"); location != "" && location != engine.InFiles {
		findings = append(findings, tryArtifacts(ctx, location)...)
	}
	return findings
}

// tryPort listens on a port for a moment.
func tryPort(ctx context.Context, setting, address string, running bool) finding {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		if err := listener.Close(); err != nil {
			return finding{setting, failed, err.Error(), ""}
		}
		return finding{setting, fine, address + " is free", ""}
	case running:
		return finding{setting, notice, address + " is taken, as it is by the engine that runs on the state directory", ""}
	default:
		return finding{
			setting, failed, address + ": " + cause(err),
			"stop what listens there, or give another; `ss -ltnp` tells what does",
		}
	}
}

// cause is the last of an error's causes, without what was tried, which the message says.
func cause(err error) string {
	if operation, ok := errors.AsType[*net.OpError](err); ok {
		return operation.Err.Error()
	}
	return err.Error()
}

// tryArtifacts writes, reads and deletes an object in the bucket.
func tryArtifacts(ctx context.Context, location string) []finding {
	notes, err := engine.TryArtifacts(ctx, location)
	if err != nil {
		return []finding{{
			"artifacts", failed, strings.ReplaceAll(err.Error(), "\n", "; "), fault.AdviceOf(err),
		}}
	}
	findings := []finding{{"artifacts", fine, location + ": an object was written, read and deleted", ""}}
	for _, note := range notes {
		findings = append(findings, finding{"artifacts", notice, note, ""})
	}
	return findings
}
