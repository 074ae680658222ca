// Package hostscheck runs Spillway on several hosts, each a network namespace. It is a module of its own, which takes
// minutes and root.
package hostscheck
