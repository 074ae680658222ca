// Package secrecy keeps the secrets of an engine's process, and of one that runs commands as a function, from the
// processes that it starts for others.
//
// A process of the same user may read the memory and the environment of another as long as that is dumpable, and what a
// process was started with stays in /proc/PID/environ when the variable is gone.
package secrecy

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// secrets are the variables whose values are secrets; whoever adds one that the engine reads adds it here. AWS and
// OpenTelemetry name theirs: https://docs.aws.amazon.com/sdkref/latest/guide/environment-variables.html and
// https://opentelemetry.io/docs/specs/otel/protocol/exporter/
var secrets = []string{
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
	"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
	"OTEL_EXPORTER_OTLP_LOGS_HEADERS",
	"SPILLWAY_JOIN_TOKEN", "SPILLWAY_TOKEN",
	"SPILLWAY_ALERT_WEBHOOKS", // of activities/alerts, whose package would bring NATS into functions
}

// Conceal takes the secrets, and the values of more variables, out of what the process was started with, and makes it a
// process that others of its user cannot look into, and that leaves no core file, as those do not that it starts. The
// process itself still finds its variables, until Forget. Call it first of all: what was read from the environment
// before is overwritten. Root sees everything all the same. Elsewhere than on Linux it does nothing.
func Conceal(more ...string) error {
	var names []string
	for _, name := range slices.Concat(secrets, more) {
		if value, set := os.LookupEnv(name); set {
			names = append(names, name)
			// The value lies in the memory that is about to be overwritten.
			if err := os.Setenv(name, strings.Clone(value)); err != nil {
				return fmt.Errorf("keep %s: %w", name, err)
			}
		}
	}
	return conceal(names)
}

// Forget takes the secrets, and more variables, out of the process's own environment, once they were read: what it
// starts from now on is not given them.
func Forget(more ...string) error {
	for _, name := range slices.Concat(secrets, more) {
		if err := os.Unsetenv(name); err != nil {
			return fmt.Errorf("forget %s: %w", name, err)
		}
	}
	return nil
}
