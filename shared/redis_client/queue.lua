-- What every script that touches a queue shares; shared/redis_client/scripts.py puts it before each of them.
-- A queue `imagefleet.shapes.64x64@gold` is one Redis list a priority level. Workers know their own
-- queues; the tenants' they find by name in the set `imagefleet:queues`, and strike out when empty.
local LEVELS = {'', '\6\0223', '\6\0226', '\6\0229'}  -- kombu's, highest first

-- The tenant of a queue or of one of its lists: nil if it has none.
local function tenant_of(queue) return string.match(queue, '@([^@\6]*)') end

local function queue_of(list) return string.match(list, '^[^\6]*') end

-- Back to the head of the list, where the next claim finds it.
local function put_back(list, message)
  redis.call('RPUSH', list, message)
  redis.call('SADD', string.match(list, '^[^.]*') .. ':queues', queue_of(list))
end
