-- Definitions for all scripts that use queues. shared/redis_client/scripts.py puts this file before
-- each script. It uses no KEYS and no ARGV, and returns nothing.
-- A queue such as `imagefleet.shapes.64x64@gold` is one Redis list per priority level. Workers know
-- the names of their own queues. They find the queues of tenants in the set `imagefleet:queues`, and
-- remove those that are empty from it.
local LEVELS = {'', '\6\0223', '\6\0226', '\6\0229'}  -- the suffixes of kombu, highest priority first

-- Return the tenant of a queue or of one of its lists, nil if it has none.
local function tenant_of(queue) return string.match(queue, '@([^@\6]*)') end

-- Return the queue that a list belongs to.
local function queue_of(list) return string.match(list, '^[^\6]*') end

-- Put a message back to the head of its list, where the next claim finds it.
local function requeue_message(list, message)
  redis.call('RPUSH', list, message)
  redis.call('SADD', string.match(list, '^[^.]*') .. ':queues', queue_of(list))
end
