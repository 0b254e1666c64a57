-- Definitions for all scripts that change the record of a job. shared/redis_client/scripts.py puts this file before
-- each script. It uses no KEYS and no ARGV, and returns nothing.

-- Publish that the record `<namespace>:job:<id>` has changed, on the channel `<namespace>:changes:<id>`, and the state
-- that it has now (`deleted`: none). The namespace of a lane in a cluster ends with a hash tag: its channels are of its
-- slot, and only the servers of the slot hear them. Redis keeps no message: who hears none reads the record every few seconds. Return whether it was
-- allowed. A user without the right to the channel changes records all the same.
local function publish_change(record, state)
  local channel = string.gsub(record, ':job:', ':changes:', 1)
  local command = string.find(record, '^[^:]*}:') and 'SPUBLISH' or 'PUBLISH'
  return type(redis.pcall(command, channel, state)) == 'number'
end
