// Package spill replays recorded loads against policies that hold hosts and leave what is above them to functions.
package spill
