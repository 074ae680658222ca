package config

import "github.com/spf13/pflag"

// rule says that a setting means nothing beside another, or without one.
type rule struct {
	setting string
	beside  string // the setting that it means nothing beside
	without string // the setting that it means nothing without
	why     string
	do      string
}

// rules are the settings that do not go together. One that there is not is not looked at.
var rules = []rule{
	{
		setting: "function-cpus", beside: "no-burst", why: "nothing is spilled to functions",
		do: "leave one of them out",
	},
	{
		setting: "temporal-port", beside: "temporal-address",
		why: "it is the port of the Temporal that Spillway starts, and none is started", do: "leave one of them out",
	},
	{
		setting: "ui-port", beside: "temporal-address",
		why: "it is the port of the web UI of the Temporal that Spillway starts, and none is started",
		do:  "leave one of them out",
	},
	{setting: "ui-port", beside: "no-ui", why: "there is no web UI", do: "leave one of them out"},
	{
		setting: "nats-port", beside: "nats-url", why: "it is the port of the NATS that Spillway starts, and none is started",
		do: "leave one of them out",
	},
	needs("temporal-namespace", "temporal-address"),
	needs("temporal-api-key-file", "temporal-address"),
	needs("temporal-tls-ca", "temporal-address"),
	needs("temporal-tls-certificate", "temporal-address"),
	needs("temporal-tls-server-name", "temporal-address"),
	needs("temporal-tls-certificate", "temporal-tls-key"),
	needs("temporal-tls-key", "temporal-tls-certificate"),
	needs("nats-leaf-url", "nats-url"),
	needs("nats-credentials", "nats-url"),
	needs("nats-replicas", "nats-url"),
	needs("nats-tls-ca", "nats-url"),
	needs("nats-tls-certificate", "nats-url"),
	needs("nats-tls-certificate", "nats-tls-key"),
	needs("nats-tls-key", "nats-tls-certificate"),
	{
		setting: "token", beside: "token-file", why: "both say what this machine is let in by", do: "leave one of them out",
	},
	needs("oidc-ca", "oidc-issuer"),
	needs("oidc-client-id", "oidc-issuer"),
	needs("oidc-client-secret-file", "oidc-issuer"),
	needs("oidc-groups-claim", "oidc-issuer"),
	needs("oidc-name-claim", "oidc-issuer"),
	needs("oidc-role", "oidc-issuer"),
	needs("oidc-scope", "oidc-issuer"),
	needs("oidc-session", "oidc-issuer"),
	needs("oidc-title", "oidc-issuer"),
	needs("oidc-issuer", "oidc-client-id"),
	needs("oidc-issuer", "oidc-role"),
	needs("advertise", "listen"),
	needs("tls-certificate", "listen"),
	needs("tls-certificate", "tls-key"),
	needs("tls-key", "tls-certificate"),
}

func needs(setting, without string) rule {
	return rule{setting: setting, without: without, why: "it has no effect without that", do: "give " + without + ", too"}
}

// Conflicts returns which of the settings that were said do not go together, once [Sources.Apply] was called. What is
// typed may make what is said elsewhere mean nothing: whoever types --no-burst for once does not change the file.
func Conflicts(flags *pflag.FlagSet) (mistakes []Mistake) {
	for _, rule := range rules {
		flag := flags.Lookup(rule.setting)
		if flag == nil || !said(flag) {
			continue
		}
		var text string
		switch beside, without := lookup(flags, rule.beside), lookup(flags, rule.without); {
		case beside != nil && said(beside) && (typed(flag) || !typed(beside)):
			text = "it does not go with " + beside.Name + told(beside) + ": " + rule.why
		case without != nil && !said(without):
			text = "there is no " + without.Name + ", and " + rule.why
		default:
			continue
		}
		mistakes = append(mistakes, place(flag, text, rule.do))
	}
	Sort(mistakes)
	return mistakes
}

func lookup(flags *pflag.FlagSet, name string) *pflag.Flag {
	if name == "" {
		return nil
	}
	return flags.Lookup(name)
}

// said reports whether a setting was said, and a switch is on.
func said(flag *pflag.Flag) bool {
	return flag.Changed && (flag.Value.Type() != "bool" || flag.Value.String() == "true")
}

func typed(flag *pflag.Flag) bool { return OriginOf(flag).Source == CommandLine }

func told(flag *pflag.Flag) string {
	if typed(flag) {
		return ""
	}
	return " (" + OriginOf(flag).Where + ")"
}

// place is a mistake where the value of a flag was said.
func place(flag *pflag.Flag, text, do string) Mistake {
	origin := OriginOf(flag)
	if origin.Source != File {
		return Mistake{Where: Told(flag), Setting: flag.Name, Text: text, Do: do}
	}
	return Mistake{
		Where: origin.file, Line: origin.line, Column: origin.column, Setting: flag.Name,
		Text: flag.Name + ": " + text, Do: do,
	}
}
