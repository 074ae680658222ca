package config_test

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/config"
)

func TestSettingsThatDoNotGoTogetherAreTold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		file, environment string // of SPILLWAY_NATS_URL
		args              []string
		want              []string
	}{
		"nothing": {"", "", nil, nil},
		"a switch": {
			"no-ui: true\nui-port: 8000\n", "", nil, []string{
				"s.yaml:2:10: ui-port: it does not go with no-ui (s.yaml:1:8): there is no web UI",
			},
		},
		"off": {"no-ui: false\nui-port: 8000\n", "", nil, nil},
		"the file and the environment": {"nats-port: 4000\n", "nats://a", nil, []string{
			"s.yaml:1:12: nats-port: it does not go with nats-url (SPILLWAY_NATS_URL): it is the port of the NATS that",
		}},
		"what is missing": {
			"nats-replicas: 3\n", "", nil, []string{"s.yaml:1:16: nats-replicas: there is no nats-url"},
		},
		"what is missing is in the environment": {"nats-replicas: 3\n", "nats://a", nil, nil},
		"a certificate alone": {"nats-tls-certificate: c\nnats-url: nats://a\n", "", nil, []string{
			"s.yaml:1:23: nats-tls-certificate: there is no nats-tls-key",
		}},
		"both of several": {"nats-tls-key: c\nnats-replicas: 3\n", "", nil, []string{
			"s.yaml:1:15: nats-tls-key: there is no nats-tls-certificate", "s.yaml:2:16: nats-replicas: there is no nats-url",
		}},
		"typed, what makes the file mean nothing": {"ui-port: 8000\n", "", []string{"--no-ui"}, nil},
		"typed, what means nothing by the file": {"no-ui: true\n", "", []string{"--ui-port", "8000"}, []string{
			"--ui-port: it does not go with no-ui (s.yaml:1:8)",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := pflag.NewFlagSet("test", pflag.ContinueOnError)
			set.Bool("no-ui", false, "")
			for _, name := range []string{
				"ui-port", "nats-port", "nats-url", "nats-replicas", "nats-tls-certificate", "nats-tls-key",
			} {
				set.String(name, "", "")
			}
			config.Mark(set)
			if err := set.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			known := config.Gather(map[string]*pflag.FlagSet{"dev": set})
			document, mistakes := config.Parse("s.yaml", []byte(test.file), known)
			mistakes = append(mistakes, config.Sources{File: document, Environment: func(name string) (string, bool) {
				return test.environment, name == "SPILLWAY_NATS_URL"
			}}.Apply(set)...)
			if len(mistakes) > 0 {
				t.Fatal(mistakes)
			}
			got := config.Conflicts(set)
			if len(got) != len(test.want) {
				t.Fatalf("got %v, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(got[i].String(), want) {
					t.Errorf("got  %s\nwant %s", got[i], want)
				}
			}
		})
	}
}
