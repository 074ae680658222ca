package config

import (
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// Hidden stands for a value that may be a secret.
const Hidden = "(secret)"

// Shown is the value of a setting as messages show it: not what may be a secret.
func Shown(flag *pflag.Flag, text string) string {
	switch {
	case text != "" && (IsSecret(flag) || clearSecret(flag, Environment, text) != ""):
		return Hidden
	case flag.Value.Type() == "LOCATION" && flag.Value.String() == text: // of artifacts, where credentials are refused
		return text
	default:
		return Redacted(text)
	}
}

// Redacted is a value as messages show it: an empty one would not be seen, and what a URL has before its host or in its
// query may be a secret.
func Redacted(value string) string {
	if value == "" {
		return `""`
	}
	if scheme, rest, isURL := strings.Cut(value, "://"); isURL {
		place, query, asks := strings.Cut(rest, "?")
		if at := strings.LastIndex(place, "@"); at >= 0 { // a secret of AWS may have slashes
			place = "...@" + place[at+1:]
		}
		if asks && strings.ContainsAny(query, "=@") {
			place += "?..."
		} else if asks {
			place += "?" + query
		}
		return scheme + "://" + place
	}
	return value
}

// token is a JSON Web Token (RFC 7519), which API keys and the credentials of NATS are.
var token = regexp.MustCompile(`^eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*$`)

// seed is a seed of NATS, by which a user signs: https://github.com/nats-io/nkeys#readme
var seed = regexp.MustCompile(`^S[UAOCNX][A-Z2-7]{56}$`)

// payloadKey is a key of 32 bytes as base64, which payload keys are.
var payloadKey = regexp.MustCompile(`(^|[^A-Za-z0-9+/])[A-Za-z0-9+/]{43}=$`)

// clearSecret says that a value is a secret in clear where a file is wanted, or a URL with a credential in a file,
// which is read by more than who may use it; empty where it is neither. It never repeats the value.
func clearSecret(flag *pflag.Flag, from Source, text string) string {
	if strings.Contains(text, "-----BEGIN ") {
		return "is a key or a certificate in clear"
	}
	if token.MatchString(text) || seed.MatchString(text) {
		return "is a token or a seed in clear"
	}
	if IsPath(flag) && payloadKey.MatchString(text) {
		return "is a key in clear"
	}
	_, rest, isURL := strings.Cut(text, "://")
	switch {
	case !isURL:
		return ""
	case IsPath(flag):
		return "is a URL where a file is wanted"
	case from == File && !IsSecret(flag) && strings.Contains(rest, "@"):
		return "has a credential in clear"
	default:
		return ""
	}
}
