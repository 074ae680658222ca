// Package alerts sends alerts to people: to a stream of NATS and to webhooks.
package alerts
